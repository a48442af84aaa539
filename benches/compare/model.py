"""What happens to the chain, what clients request, and what was true when, for `run`.

All follows from the seed: a sandbox with the same seed to which the same is done is the same sandbox.
"""

import hashlib
import json
import random
from urllib.parse import quote

from wire import Client

# A block each so many seconds, the first one after half of that. Between real blocks there are 600 s, so a subject that
# asks for what is new at each block has 40 times as much to do here as it has in 10 minutes of a day.
BLOCK_EVERY = 15
# The block that comes with a reorg, and how many blocks that replaces.
REORG_AT, DEPTH = 3, 2
PAGES = [10, 20, 25, 60]
# How far down clients look: the sandbox has some 200 blocks.
RECENT, OLDEST = 40, 190


class History:
    def __init__(self, seconds):
        self.seconds, self.changes = seconds, []
        at, number = BLOCK_EVERY / 2, 1
        while at < seconds:
            # A reorg replaces blocks by a longer branch.
            reorg = [f"/sandbox/reorg?depth={DEPTH}"] if number == REORG_AT else []
            self.changes.append((at, [*reorg, "/sandbox/advance?blocks=1"]))
            at, number = at + BLOCK_EVERY, number + 1
        self.orphans = []

    def summary(self):
        reorg = f"one of them a reorg of {DEPTH}" if len(self.changes) >= REORG_AT else "no reorg"
        return f"{len(self.changes)} blocks, {reorg}"

    def version(self, at):
        return sum(change <= at for change, _ in self.changes)

    def truth(self, sandbox, trace):
        """For each target, a digest of the answer of each version."""
        client, found = Client(sandbox.port), {target: [] for target in trace.targets}
        for version in range(len(self.changes) + 1):
            if version:
                sandbox.apply(self.changes[version - 1][1])
            for target in trace.targets:
                found[target].append(digest(*client.get(target)))
        client.close()
        return found


def digest(status, body):
    return hashlib.sha256(b"%d " % status + body).digest()


class Version:
    """What clients can see of the chain at one moment."""

    def __init__(self, client, before):
        self.tip = json.loads(client.get("/runes/v1/")[1])["block_height"]
        self.blocks = dict(before.blocks) if before else {}
        heights = range(self.tip - OLDEST, self.tip + 1)
        # Older blocks are those of the version before.
        for height in heights if not before else range(before.tip - DEPTH, self.tip + 1):
            page = json.loads(client.get(f"/runes/v1/blocks/{height}/activity?limit=60")[1])
            items = [item["location"] for item in page["results"]]
            self.blocks[height] = (page["total"], items[0]["block_hash"] if items else None, [i["tx_id"] for i in items])


class Trace:
    """The requests: (seconds from the start, target), in order of time."""

    def __init__(self, sandbox, history, seed, rate):
        client, chance = Client(sandbox.port), random.Random(seed)
        tokens = [path for path in json.loads(client.get("/sandbox/examples")[1])["tokens"]]
        versions = [Version(client, None)]
        for _, change in history.changes:
            sandbox.apply(change)
            versions.append(Version(client, versions[-1]))
        client.close()
        for before, after in zip(versions, versions[1:]):
            for height in range(before.tip - DEPTH, before.tip + 1):
                was = before.blocks[height][1]
                if was and was != after.blocks[height][1]:
                    history.orphans.append((was.encode(), versions.index(after)))
        self.requests = []
        at = 0.0
        while (at := at + chance.expovariate(rate)) < history.seconds:
            self.requests.append((at, target(versions[history.version(at)], tokens, chance)))
        self.targets = sorted({target for _, target in self.requests})


def zipf(chance, count):
    """A number below `count`; small ones are more frequent: by 1/n."""
    return min(int(count ** chance.random()), count) - 1


def target(version, tokens, chance):
    """One request of an explorer's or a frontend's client."""
    kind, limit = chance.random(), chance.choice(PAGES)
    if kind < 0.30:
        return tokens[zipf(chance, len(tokens))]
    if kind < 0.45:
        # The newest block, again and again.
        return f"/runes/v1/blocks/{version.tip}/activity?limit={limit}&offset=0"
    if kind < 0.85:
        recent = kind < 0.70
        height = version.tip - (zipf(chance, RECENT) if recent else RECENT + chance.randrange(OLDEST - RECENT))
        total, block_hash, _ = version.blocks[height]
        # One in eight by the hash; and the next pages, less and less often.
        block = block_hash if block_hash and chance.random() < 0.125 else height
        offset = limit * zipf(chance, max(1, -(-total // limit)))
        return f"/runes/v1/blocks/{block}/activity?limit={limit}&offset={offset}"
    height = version.tip - zipf(chance, OLDEST)
    transactions = version.blocks[height][2]
    if not transactions:
        return f"/runes/v1/blocks/{height}/activity?limit={limit}&offset=0"
    return f"/runes/v1/transactions/{quote(transactions[zipf(chance, len(transactions))])}/activity?limit={limit}&offset=0"


def judge(trace, history, truth, changes, takes, bound):
    """Counts answers by what they are. Which version an answer is from, its bytes tell: the newest that would have said
    the same, among those that existed before it came. Its age is the time from the end of that version to the moment
    when the request was sent."""
    failed = late = orphaned = untrue = 0
    oldest = 0.0
    for (_, target), (sent, done, status, body) in zip(trace.requests, takes):
        if status == 0 or status == 429 or status >= 500:
            failed += 1
            continue
        got = digest(status, body)
        newest = sum(before <= done for before, _ in changes)
        version = next((v for v in range(newest, -1, -1) if truth[target][v] == got), None)
        if version is None:
            untrue += 1
            continue
        ended = changes[version][1] if version < len(changes) else sent
        age = max(0.0, sent - ended)
        oldest = max(oldest, age)
        late += age > bound
        orphaned += any(block in body and sent - changes[gone - 1][1] > bound for block, gone in history.orphans)
    return {"requests": len(takes), "failed": failed, "late": late, "oldest": oldest, "orphaned": orphaned, "untrue": untrue}
