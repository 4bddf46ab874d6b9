"""A script that answers as those of `bench/peers` do, with the standard library alone."""

# Its n-th answer took n seconds, and outputs are zeros; tokens come at the arrival, and a second
# later each. The prompt [13] ends it.
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
