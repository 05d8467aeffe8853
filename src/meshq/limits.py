"""All limits of meshq, each with its unit in the name and its reason beside it; related limits are checked here."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# -- the run: the unit of storage -----------------------------------------------------------------------------
#: Messages in one run.  A million queued messages are 4,000 runs; a bitmap of one is 32 bytes.
RUN_MESSAGES_MAX: Final = 256
#: Bytes at which a producer closes a run that could still take messages: large enough that the fixed cost of a
#: frame vanishes, small enough that a run is never a burden to hold.
RUN_BYTES_TARGET: Final = 256 * KIB
#: Bytes of one message's body.  Larger ones need streaming.
MESSAGE_BYTES_MAX: Final = 16 * MIB
#: Messages a queue hands out in one step, so that a step stays bounded.
STEP_MESSAGES_MAX: Final = 1_000
#: Bytes that count as much as one message more where a step dispatches messages.
STEP_MESSAGE_BYTES: Final = 1 * KIB

# -- frames -----------------------------------------------------------------------------------------------------
#: The first bytes of every frame, by which whoever expects TLS knows plaintext of ours.
FRAME_MAGIC: Final = b"MQ"
#: Shared header of a frame (msgpack).  It carries names and numbers only.
HEADER_BYTES_MAX: Final = 4 * KIB
#: Nesting allowed in any msgpack value that comes from a peer; headers and properties are flat maps.
MSGPACK_DEPTH_MAX: Final = 2
#: Body region of one frame: one message at least always fits, with its properties and its duplicate id.
BODY_BYTES_MAX: Final = MESSAGE_BYTES_MAX + 66 * KIB
#: Body region of a frame before authentication.
UNAUTHENTICATED_BYTES_MAX: Final = 64 * KIB
#: Bytes read from a stream at a time.
RECEIVE_BYTES: Final = 256 * KIB

# -- names and properties ---------------------------------------------------------------------------------------
ADDRESS_BYTES_MAX: Final = 512
#: Characters of the name of a node: what the first frame to each client has room for.
NODE_NAME_CHARACTERS_MAX: Final = 256
#: A datagram that is broadcast: a node's name, its connectors and a signature, several times over.  UDP has room for
#: 64 KiB, and every fragment makes a loss more likely.
DATAGRAM_BYTES_MAX: Final = 8 * KIB
#: Connectors of one announced node, each with that of a backup.  Whoever hears them dials all of them in turn, and a
#: datagram has room for hundreds.
CONNECTORS_ANNOUNCED_MAX: Final = 8
#: URLs within a client's URL: a list in a list in an agent is three.
URL_DEPTH_MAX: Final = 8
DUPLICATE_ID_BYTES_MAX: Final = 255
PROPERTY_NAME_BYTES_MAX: Final = 255
PROPERTIES_MAX: Final = 256
#: Properties, and the optional headers, of one message, encoded.
PROPERTIES_BYTES_MAX: Final = 64 * KIB
#: The ids of the path of a message through a network of brokers, encoded.
PATH_BYTES_MAX: Final = 576
#: The same on the wire and in the journal: what a bridge says beside them, and the path, find room in a message that
#: has all of it.
ENVELOPE_BYTES_MAX: Final = PROPERTIES_BYTES_MAX + 512 + PATH_BYTES_MAX
PRIORITY_DEFAULT: Final = 4
PRIORITY_MAX: Final = 9
#: Priorities of consumers: half of them are below 0.
CONSUMER_PRIORITIES: Final = 256
#: Brokers in the path of a message, and on a way to a consumer, in a network of brokers: as far as a cluster reaches.
NETWORK_HOPS_MAX: Final = 16
#: How often a message goes back in a network of brokers, at most.
NETWORK_RETURNS_MAX: Final = 16
#: Of a group's name.
GROUP_BYTES_MAX: Final = 255
#: Patterns whose settings were set while the node ran; each address is compared with all of them when one changes.
ADDRESS_SETTINGS_MAX: Final = 1_024
#: The largest whole number of a setting: what a header carries, with room for a sum of two.
NUMBER_MAX: Final = 2**63 - 1
#: The longest time to live, or delay, of a message: a hundred years.
TIME_S_MAX: Final = 100 * 366 * 86_400

# -- security ---------------------------------------------------------------------------------------------------
USER_CHARACTERS_MAX: Final = 256
#: Of a password, encoded.
PASSWORD_BYTES_MAX: Final = 1_024
#: Of the key with which a store is encrypted: AES-256.
ENCRYPTION_KEY_BYTES: Final = 32
#: Keys that a store is read with: each replaced one is needed until what it encrypted is gone.
ENCRYPTION_KEYS_MAX: Final = 64
#: Rounds of PBKDF2 per guess: eight milliseconds, once for each user at start and once for each client.
ITERATIONS: Final = 16_384
ITERATIONS_MIN: Final = 4_096
#: What a client computes for a node that it does not know yet: a tenth of a second.
ITERATIONS_MAX: Final = 200_000
#: All that is read of a connection before its peer is known; a TLS handshake with a chain of certificates fits.
UNAUTHENTICATED_READ_BYTES_MAX: Final = 64 * KIB
#: Connections of one address that have no session yet.  Their handshakes, one after the other on one core, take less
#: than the 5 s that a phase may take; of a larger herd after a restart each round of attempts brings in as many.
UNAUTHENTICATED_PER_ADDRESS_MAX: Final = 256
#: Where there are fewer descriptors: at most this part of all connections without a session is of one address, ...
UNAUTHENTICATED_ADDRESS_SHARE: Final = 4
#: ... but this many in any case.
UNAUTHENTICATED_PER_ADDRESS_MIN: Final = 16
#: All connections that have no session yet, whatever their address; each may take 64 KiB.
UNAUTHENTICATED_MAX: Final = 4_096
#: The part of all connections that may have no session yet.
UNAUTHENTICATED_SHARE: Final = 2
#: Addresses of which a node remembers, for each user, what is permitted there; working it out takes microseconds.
PERMITTED_ADDRESSES_MAX: Final = 4_096
#: Addresses of which a node remembers that they failed to authenticate.
GUARDED_ADDRESSES_MAX: Final = 4_096

# -- filters ----------------------------------------------------------------------------------------------------
#: A filter's text: with the name of its queue it has to fit in the header of one frame.
FILTER_BYTES_MAX: Final = 2 * KIB
#: Parentheses, NOTs and signs inside each other: whoever reads or evaluates a filter goes as deep as that.
FILTER_DEPTH_MAX: Final = 32
#: Names and literals outside the lists of IN: what a filter costs per message is a small multiple of it.
FILTER_TERMS_MAX: Final = 256
#: Different filters of one queue that no index serves: each message is put to every one of them.
FILTERS_SCANNED_MAX: Final = 1_024
#: Messages of a queue that are put to its filters in one step: some twenty milliseconds.
SCAN_MESSAGES_MAX: Final = 8_192
#: What counts as much as one message more: terms of the filters that it is put to; bytes of its properties, and of
#: these for each LIKE.
SCAN_TERMS: Final = 12
SCAN_BYTES: Final = 4 * KIB
SCAN_LIKE_BYTES: Final = 128

# -- sessions -----------------------------------------------------------------------------------------------------
#: Consumers and producers of one session: a channel number is 32 bits, but each one has a cost at the broker.
CHANNELS_MAX: Final = 4_096
#: Sessions of one broker.
SESSIONS_MAX: Final = 16_384
#: Sessions of one user, unless the broker is told otherwise, ...
SESSIONS_PER_USER: Final = 4_096
#: ... and the percentage of all connections that a process can have: others come in, too.
SESSIONS_PER_USER_PERCENT: Final = 75
#: Seconds for which a session may outlive its link, unless the broker is told otherwise: a client asks for a
#: minute, and what a session holds waits for as long.
SESSION_TTL_S: Final = 300.0
#: A shorter time would cost more pings than a session is worth.
SESSION_TTL_S_MIN: Final = 0.1
#: The most that a broker may be told.
SESSION_TTL_S_MAX: Final = 86_400.0
#: Bytes of frames sent and not yet known to have arrived, kept for a resume.
CONFIRMATION_WINDOW_BYTES: Final = 1 * MIB
#: The least that a client may choose: whoever has a smaller one reports more than it says.
CONFIRMATION_WINDOW_BYTES_MIN: Final = 4 * KIB
#: The most that a broker keeps for one session, whatever its client keeps.
CONFIRMATION_WINDOW_BYTES_MAX: Final = 64 * MIB
#: A client says what has arrived after a quarter of its window, and after so many bytes at the latest.
REPORT_BYTES_MAX: Final = 1 * MIB
#: Producers whose durable high watermark a node remembers.
PRODUCERS_MAX: Final = 65_536
#: Of them of one user who was asked for a name: whoever comes with many ids has its own forgotten.
PRODUCERS_OF_USER_MAX: Final = PRODUCERS_MAX // 2
#: Bytes that wait for a client to read them before nothing more is taken of it, until they have gone: the windows of
#: four consumers.  Whoever reads what it has asked for hardly gets there.
UNREAD_BYTES_MAX: Final = 64 * MIB
#: Bytes of frames, and of what it costs to keep each, that wait behind one for room on the disk before nothing more is
#: read of a client; what it was granted to send is not counted.
HELD_BYTES_MAX: Final = 1 * MIB
HELD_FRAME_BYTES: Final = 512
#: Bytes of answers that a client may not know to have arrived, and ask on: more than answers to everything that it may
#: ask for at a time, and each question says what has arrived.
UNREPORTED_BYTES_MAX: Final = 32 * MIB
#: Bytes that a session may send before the broker grants more.
SEND_CREDIT_BYTES: Final = 4 * MIB
#: Messages a producer keeps in flight unless told otherwise.
PRODUCER_WINDOW_MESSAGES: Final = 4_000
#: Queues of users of one address: the record of a run has 16 bytes for each, and must not outgrow its limit by them.
QUEUES_PER_ADDRESS_MAX: Final = 2_048
#: Of them with filters: each may have every other message of a run, which takes 20 bytes for each two.
FILTERED_QUEUES_PER_ADDRESS_MAX: Final = 400
#: Queues of one topic for network consumers, each with a filter, beside those of users: one for each link, or more.
NETWORK_QUEUES_PER_ADDRESS_MAX: Final = 400
#: Queues of one address, whoever has made them.
ALL_QUEUES_PER_ADDRESS_MAX: Final = QUEUES_PER_ADDRESS_MAX + NETWORK_QUEUES_PER_ADDRESS_MAX
#: Branches of one cluster link: addresses whose messages wait for room at the other node, while others overtake them.
#: Their table is written whole, and at the head of each segment.
LINK_BRANCHES_MAX: Final = 64
#: Diverts of one node: a message may pass them all, and a way through them is looked for in calls inside each other.
DIVERTS_MAX: Final = 256
#: Calls (create a queue, ask for statistics, ...) of one session that wait for their answer.
CALLS_MAX: Final = 1_024
#: Body of a request for management: the longest filter fits many times over.
REQUEST_BODY_BYTES_MAX: Final = 64 * KIB
#: Notifications of one turn that wait for its end: a burst that deletes a thousand queues is told whole.
NOTIFICATIONS_WAITING_MAX: Final = 4_096
#: Bytes of a node's own messages that wait for what costly filters say of them.
OWN_MESSAGES_WAITING_BYTES_MAX: Final = 16 * MIB
#: Notifications that a subscription keeps for a consumer that does not look: some megabytes.
NOTIFICATIONS_QUEUED_MAX: Final = 16_384
#: ``async for`` and ``producer.send`` may skip the scheduler, but not longer than this many messages.
CHECKPOINT_MESSAGES: Final = 64

# -- transactions -------------------------------------------------------------------------------------------------
#: Open ones of one session.
TRANSACTIONS_MAX: Final = 256
#: Messages that one sends and acknowledges: each is looked at in the one step that commits it.
TRANSACTION_MESSAGES_MAX: Final = 65_536
#: Bytes of the runs that one sends.  A commit is one batch of the journal, with acknowledgements beside them.
TRANSACTION_BYTES_MAX: Final = 24 * MIB
#: The part of a node's memory that runs of open transactions may take; and what filters say of these, beside that.
TRANSACTIONS_MEMORY_SHARE: Final = 4
#: Bytes of the id of one that is prepared: a global id and a branch of the usual 64 bytes each.
XID_BYTES_MAX: Final = 128
#: Prepared ones of a node: each holds messages and memory until somebody decides, however long that takes.
PREPARED_MAX: Final = 4_096
#: Decisions that a node remembers.  Who was cut off asks again within minutes; 10,000 take a few megabytes.
DECISIONS_REMEMBERED: Final = 10_000
#: Seconds for which an open one may be idle.
TRANSACTION_TIMEOUT_S: Final = 300.0

# -- stages -------------------------------------------------------------------------------------------------------
#: Stages of a node that are open, wait for a decision or are being placed: each has a queue and a record.
STAGES_MAX: Final = 2_048
#: Stages that the commit of a batch names: four bytes each, and all of them fit in the header of one frame.
BATCH_STAGES_MAX: Final = 900
#: Of the staged messages that wait for room in memory or on the disk; or as many as the memory that a node may use.
STAGED_WAITING_BYTES_MIN: Final = 64 * MIB
#: Sinks in the ledger of a node: each has one record, for as long as it is not deleted.
SINKS_MAX: Final = 10_000
#: Of the name of a sink, encoded.
SINK_BYTES_MAX: Final = 128
#: Seconds for which a stage waits for a decision, unless its writer says otherwise.
STAGE_TIMEOUT_S: Final = 3_600.0
STAGE_TIMEOUT_S_MIN: Final = 1.0
STAGE_TIMEOUT_S_MAX: Final = 7 * 86_400.0

# -- descriptors ---------------------------------------------------------------------------------------------------
#: Assumed where the system names no limit for a process, or none that can be reached.
DESCRIPTORS_UNKNOWN: Final = 65_536
#: The part of a process's descriptors that connections leave to the store, to links to other nodes, and to the program.
DESCRIPTORS_RESERVED_SHARE: Final = 4
#: The least and the most of it: two threads' files for each of the store's pools, its segments and what Python has open
#: are some forty; beyond that each upload of a large body has one.
DESCRIPTORS_RESERVED_MIN: Final = 64
DESCRIPTORS_RESERVED_MAX: Final = 4_096
#: The part of the reserve that uploads of large bodies may take.
DESCRIPTORS_UPLOADS_SHARE: Final = 2

# -- store --------------------------------------------------------------------------------------------------------
SEGMENT_BYTES: Final = 10 * MIB
SEGMENT_BYTES_MIN: Final = 64 * KIB
SEGMENT_BYTES_MAX: Final = 1 * GIB
SEGMENT_HEADER_BYTES: Final = 4 * KIB
SECTOR_BYTES: Final = 512
#: One record: a run of the largest message with its envelope, and who has which of its messages.
RECORD_BYTES_MAX: Final = BODY_BYTES_MAX + 3 * MIB
#: One batch: what one group commit writes.
BATCH_BYTES_MAX: Final = 32 * MIB
#: Segments and live share at which compaction begins.
COMPACT_SEGMENTS_MIN: Final = 10
COMPACT_LIVE_PERCENT: Final = 30
#: Bytes of segments that are read in a second for their indexes and for a proof of what was not read at the start: a
#: small part of what a disk and a core can do.
BACKGROUND_BYTES_PER_S: Final = 128 * MIB
#: Acknowledgements alone wait this long for company before they are synced.
LAZY_COMMIT_S: Final = 0.005
#: Seconds for which the close of a journal waits for its replication sink, unless the owner says otherwise: as long as
#: a broker has for its stop.
SINK_TIMEOUT_S: Final = 10.0
#: Bytes of a queue that stay in memory when the rest of it is paged, and that come back at a time.
PAGE_BYTES_DEFAULT: Final = 10 * MIB
#: Less than a run costs more seeks than it saves memory; more would be a queue in memory.
PAGE_BYTES_MIN: Final = 64 * KIB
PAGE_BYTES_MAX: Final = 1 * GIB
#: Bytes that are read back, or written to be read back, in one step: some milliseconds of a thread.
PAGE_READ_BYTES: Final = 4 * MIB
#: Duplicate ids kept per address.
DUPLICATE_IDS_DEFAULT: Final = 20_000
#: Sequence numbers reserved at a time for messages that leave no trace on disk.
SEQUENCE_RESERVE: Final = 65_536
#: Numbers reserved at a time for queues that leave none: a record in so many temporary queues.  A number has 32 bits:
#: they are enough for sixteen million lives.
QUEUE_NUMBERS_RESERVE: Final = 256

# -- large messages -----------------------------------------------------------------------------------------------
#: Bodies above this size are streamed, and lie in files of their own; below it the journal is cheaper.
MIN_LARGE_MESSAGE_BYTES: Final = 102_400
#: A large body travels, and is checked, in blocks: what one frame carries and one check covers.  Others have their
#: turn on the connection between two of them.
LARGE_BLOCK_BYTES: Final = 256 * KIB
#: Blocks of one body on their way and not answered: a round trip does not slow it down, and this is all the memory
#: that a body takes at either end, whatever its size.
LARGE_WINDOW_BLOCKS: Final = 8
#: Bytes of a durable body that are written before they are synced: the last sync of all must not take longer than
#: somebody waits for an answer, however large the body is.
LARGE_SYNC_BYTES: Final = 64 * MIB
#: The largest body.  A block's number takes four million values, far below what a nonce can hold.
LARGE_BYTES_MAX: Final = 1024 * GIB
#: Bodies that one session is sending: each may have a window of blocks at the broker.
UPLOADS_MAX: Final = 16
#: Blocks that one session has asked for and not got: each is in memory until it has gone out.
READS_MAX: Final = 64

assert SESSION_TTL_S_MIN <= SESSION_TTL_S <= SESSION_TTL_S_MAX, "the default is allowed"
assert SESSIONS_PER_USER < SESSIONS_MAX, "one user does not take all sessions"
assert UNAUTHENTICATED_PER_ADDRESS_MAX * UNAUTHENTICATED_ADDRESS_SHARE <= UNAUTHENTICATED_MAX, "four addresses at least"
assert DESCRIPTORS_RESERVED_SHARE > 1 and UNAUTHENTICATED_SHARE > 1, "shares are parts"
assert BODY_BYTES_MAX >= MESSAGE_BYTES_MAX + ENVELOPE_BYTES_MAX + DUPLICATE_ID_BYTES_MAX, "a message must fit"
assert ITERATIONS_MIN <= ITERATIONS <= ITERATIONS_MAX, "a node's own choice must be taken by its clients"
assert 24 + 33 * NETWORK_HOPS_MAX <= PATH_BYTES_MAX, "the longest path must fit, without names"
assert RUN_BYTES_TARGET <= BODY_BYTES_MAX, "a full run must fit in a frame"
assert 16 * ALL_QUEUES_PER_ADDRESS_MAX <= (RECORD_BYTES_MAX - BODY_BYTES_MAX) // 2, (
    "a run for all queues must be a record"
)
assert (
    10 * RUN_MESSAGES_MAX * (FILTERED_QUEUES_PER_ADDRESS_MAX + NETWORK_QUEUES_PER_ADDRESS_MAX)
    + 20 * ALL_QUEUES_PER_ADDRESS_MAX
    <= (RECORD_BYTES_MAX - BODY_BYTES_MAX) // 4 * 3
), "who has which messages of a run must fit in its record"
assert RECORD_BYTES_MAX + SEGMENT_HEADER_BYTES <= BATCH_BYTES_MAX, "a batch must hold the largest record"
assert BODY_BYTES_MAX + KIB <= TRANSACTION_BYTES_MAX, "a transaction can send the largest message"
assert BATCH_STAGES_MAX <= STAGES_MAX, "a batch is of stages that are there"
assert 4 * BATCH_STAGES_MAX + SINK_BYTES_MAX + 256 <= HEADER_BYTES_MAX, "the commit of a batch must fit in a header"
assert RUN_MESSAGES_MAX <= STEP_MESSAGES_MAX, "a step must be able to take a whole run"
assert SEGMENT_BYTES_MIN >= 2 * SEGMENT_HEADER_BYTES, "a segment must hold more than its header"
assert FILTER_BYTES_MAX + 2 * ADDRESS_BYTES_MAX + 256 <= HEADER_BYTES_MAX, "a consumer's header must hold its filter"
assert LARGE_BLOCK_BYTES <= MIB, "a chunk that a program is given has 1 MiB at most"
assert LARGE_BLOCK_BYTES <= BODY_BYTES_MAX, "a block must fit in a frame"
assert CALLS_MAX * (HEADER_BYTES_MAX + KIB) + READS_MAX * (LARGE_BLOCK_BYTES + KIB) <= UNREPORTED_BYTES_MAX, (
    "a client that says what has arrived is never refused"
)
assert LARGE_WINDOW_BLOCKS <= READS_MAX, "one reader may fill its window"
