"""Prompts, chats and texts of the SmolLM2 goldens."""

from pathlib import Path

LONG_TEXT = (Path(__file__).parent / "long_text.txt").read_text(encoding="utf-8")

RAW_PROMPTS = [
    "The",
    "Once upon a time, in a village by the sea, there lived",
    "Water boils at 100 degrees Celsius, which in Fahrenheit is",
    "La tour Eiffel se trouve à Paris, au bord de la Seine. Elle a été construite",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    ",
    "Monday, Tuesday, Wednesday, Thursday,",
    LONG_TEXT[:2000],
]
CHAT_PROMPTS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "user", "content": "Write a haiku about autumn rain."}],
    [{"role": "user", "content": "List three uses of a paper clip."}],
    [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "Why is the sky blue?"},
    ],
    [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Nice to meet you, Ada!"},
        {"role": "user", "content": "What is my name, and how many letters does it have?"},
    ],
    [{"role": "user", "content": "Summarize this story:\n\n" + LONG_TEXT[:1400]}],
]
TOKENIZER_CHATS = [
    CHAT_PROMPTS[0],
    CHAT_PROMPTS[4],
    [
        {"role": "system", "content": "  Spaces around,\nand two lines.  "},
        {"role": "user", "content": "<|im_end|> in the text, ünïcödé 🌶 and 1,234  5"},
    ],
]
TOKENIZER_TEXTS = [
    "",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\n\n\n 7",
    "\t",
    " \t\n ",
    "\r\nline\r\n",
    "Hello world",
    " Hello world",
    "  Hello  world  ",
    "trailing space ",
    "many          spaces",
    "0",
    "12345",
    "2024-11-30 03:14:15.926",
    "1,234,567.89",
    "1  2   3\n\n4",
    "x  5",
    "a1b22c333",
    "x² + ½ = ٣٤ or Ⅷ",
    "I'm, you're, he'll, we've, it's, they'd, don't",
    "I'M YOU'RE 'tis ’twas it’s",
    "Hello, world! (really?) [yes] {no} <b>",
    "...!!!???---___***",
    "snake_case camelCase SCREAMING_CASE kebab-case",
    "https://example.org/a/b?c=1&d=%20#e",
    "café cafe\u0301 naïve Zürich Straße",
    "🌶 🙂👍🏽 👩‍👩‍👧‍👦 🇫🇷",
    "今天天气很好。我们去公园吧！",
    "こんにちは、世界。カタカナ",
    "안녕하세요 세계",
    "مرحبا بالعالم ١٢٣",
    "Привет, мир! Ελληνικά עברית हिन्दी ไทย",
    "zero\u200bwidth no\u00a0break ideo\u3000graphic \ufeffbom",
    "for (int i = 0; i < 10; ++i) {\n\tsum += a[i] * 2;\n}\n",
    "def f(x):\n    return x ** 2  # square\n\n\n        y = 10",
    '{"key": [1, 2.5, null], "s": "a\\nb"}',
    "<|im_start|>user\nHi<|im_end|>\n",
    "text<|endoftext|>more <|im_end|> and <|im_start|>",
    "<|im_start|",
    "< |im_end| > <|IM_END|>",
    "<repo_name>x<file_sep>y<empty_output>",
    # Bytes that are not in this vocabulary; BPE without an unknown token drops them.
    "control \x04 and plane four \U00040000 end",
]
