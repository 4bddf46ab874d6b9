"""Texts that `bench.kv_accuracy` scores: prose, an explanation, a recipe and code."""

TEXTS = (
    """The lighthouse keeper kept two books. In the first he wrote what the sea did: the height of
the swell at six in the morning and at six in the evening, the direction of the wind, the ships
that passed and the flags they flew. In the second he wrote what he thought about it. The first
book was inspected every spring by a man from the harbour office, who counted the entries, signed
the last page and had a glass of something in the kitchen. Nobody ever asked to see the second.
When the light was made automatic, the first book went to the museum of the town, where it lies
open under glass at a day on which nothing happened. The second book he took with him. His
granddaughter found it forty years later between the tax returns and the instructions for a radio,
and read it in one night. On the same quiet day he had written: "Nothing again. I have come to
think that nothing is what the light is for." She had the sentence framed, and hung it in the hall
beside the barometer, which had not worked since the move.""",
    """A page table is an old idea. A program sees one long row of addresses, and the machine keeps
the memory behind them in pieces of equal size, wherever there is room; a table says which piece
stands behind which part of the row. Nothing has to be next to anything else, so no gap is ever too
small to be used, and two programs that begin in the same way can share the pieces in which they
agree until one of them writes. The same idea serves a language model. While it produces a text it
must remember a key and a value for every token that came before, in every layer, and these
memories grow at different speeds for different readers. If each request reserves the longest
memory that it might need, most of the reserved space stays empty; if the memory is cut into blocks
of sixteen tokens, at most fifteen places per request are wasted. What remains is the size of an
entry. Stored in two bytes a number, one token of a large model takes a third of a megabyte. Stored
in one byte, with one scale for each vector, it takes a little more than half of that, and twice as
many conversations fit on the same machine. The price is that every key and every value is rounded,
and the question is how much of the rounding can still be seen in the answer.""",
    """To make bread for four people, mix 500 grams of flour with 10 grams of salt and 5 grams of
dry yeast, and add 350 millilitres of water at about 25 degrees. Stir until no dry flour is left,
cover the bowl, and wait for half an hour. Then wet your hands, take the dough at one side, pull it
up and fold it over to the other; turn the bowl by a quarter and repeat this four times. Do the
same again after thirty minutes, and once more thirty minutes later. By now the dough is smooth and
holds its shape. Let it rise until it has doubled, which takes between one and two hours, depending
on the temperature of the kitchen. Heat the oven to 240 degrees with an iron pot inside. Shape a
ball on a floured board, let it rest for twenty minutes, cut a cross into the top, and put it into
the hot pot. Bake for 25 minutes with the lid and for 15 to 20 minutes without it. The crust should
be dark brown, and the loaf should sound hollow when you knock on the bottom. Leave it on a rack
for at least an hour before you cut it: inside, the baking goes on for a while after the oven is
off.""",
    """def merge(left, right):
    # Both lists are sorted; the result is sorted too, and equal items keep their order.
    result = []
    i = j = 0
    while i < len(left) and j < len(right):
        if right[j] < left[i]:
            result.append(right[j])
            j += 1
        else:
            result.append(left[i])
            i += 1
    return result + left[i:] + right[j:]


def merge_sort(items):
    if len(items) < 2:
        return list(items)
    middle = len(items) // 2
    return merge(merge_sort(items[:middle]), merge_sort(items[middle:]))


for example in ([], [1], [2, 1], [3, 1, 2], [5, 4, 3, 2, 1], [1, 1, 1]):
    assert merge_sort(example) == sorted(example)
""",
)
