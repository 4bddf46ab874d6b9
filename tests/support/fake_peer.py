"""A fake of the `bench/peers` scripts that needs only the standard library."""

# Its n-th answer reports n seconds and outputs of zeros. With arrivals, token i of a request comes
# 0.5 + i seconds after its arrival. The prompt [13] makes it exit.
FAKE_PEER = """\
import json
import sys

rows = sys.argv[sys.argv.index("--rows") + 1]
print(json.dumps({"torch": "2", "rows": rows}), flush=True)
for count, line in enumerate(sys.stdin, 1):
    task = json.loads(line)
    if task["prompts"] == [[13]]:
        print("no more", file=sys.stderr)
        sys.exit(3)
    lengths = task["output_lens"]
    result = {"seconds": count, "outputs": [[0] * length for length in lengths]}
    if "arrivals" in task:
        pairs = zip(task["arrivals"], lengths)
        result = {"times": [[[at + 0.5 + i for i in range(n)], n] for at, n in pairs]}
    print(json.dumps(result), flush=True)
"""
