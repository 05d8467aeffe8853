"""The journal without a broker: a list of things to do that survives a power failure.

python journal_alone.py add "buy milk"      python journal_alone.py list      python journal_alone.py done 1
"""

import sys

import trio

from meshq import Journal


async def main(command: str, *arguments: str) -> None:
    """One command on the list in ``data/list``."""
    async with Journal("data/list") as journal:
        items = {record.position: record.payload async for record in journal.replay()}
        if command == "add":
            position = await journal.append(arguments[0].encode())
            print("added", position)
        elif command == "done":
            await journal.delete(next(position for position in items if position == int(arguments[0])))
            print("done", arguments[0])
        else:
            for position, text in items.items():
                print(position, text.decode())


if __name__ == "__main__":
    trio.run(main, *(sys.argv[1:] or ["list"]))
