"""Write docs/security.md: prose from here, and a table of limits with the values that the code has.

`make docs` writes the page; a test holds it current, and holds that every test named here exists.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import NamedTuple


class Limit(NamedTuple):
    """One bound of the code, what it bounds, and the test that fails if it does not hold."""

    place: str
    """The module and the name of the constant, as `server.daemon.spool:BLOBS_PER_REPLY_MAX`."""
    bounds: str
    test: str
    """The test's file below tests/ and its name, as `faults/test_oversize.py::test_many_blobs`."""


INTRODUCTION = """\
# Security

The possible attackers of a federation, what each can and cannot do, and the limits of the code. The
tables of limits are made from the code by `make docs`: every value on this page is the one in use.
"""

WIRE = """\
## The network and the wire

| attacker | has | can | cannot |
|---|---|---|---|
| an attacker on the network | access to the line | cut, delay, throttle or drop connections | read, change or replay messages: all connections are TLS with the authority's certificates on both sides, and a client's first connection to a server is verified by the authority's fingerprint |
| a stranger | both addresses | open connections, fail the handshake, guess tokens | call the fleet's methods without a certificate; hold memory, files or calls of the server beyond the limits below; prevent others from enrolling |
| an enrolled client | a certificate | send any message that a client can send: false updates, incomplete messages, endless uploads, floods | speak for another client; read messages of another client; use more than its own share of memory and disk; make a call of those who administer the server |
| a viewer, an operator | a certificate of that role | what the [table of roles](operating.md#roles) says, until it is revoked | make another call, also on a connection that was open before; have an action without a line in the audit log |
| a stranger | the address where a site's machines join | open connections, which end after a few seconds, and show certificates of other makers | join, learn what is trained, reach torch's sockets; slow down machines that have joined beyond the cost of its handshakes |
| a machine that was invited to train with another one of its site | a pass | join, see the params and the site's instructions, send false gradients | lead others; have code run that was not given to them; reach a port of the leader but its ranks' |
| a receiver of `[notify]`, or who has taken its place | what the server tells: names of clients, causes of failures | refuse, delay or forget it | make a notice that another receiver believes, without the key; hold up the server; have a redirect followed, or more read than the first line of an answer |
| the server's operator, or an attacker that controls the server | the authority's key | choose cohorts, apps and settings; withhold answers | run code that the owner did not install or approve; bypass an owner's policy; see single updates within a secure sum |

A message that exceeds its bound is refused as soon as its length is known, before it has arrived; a
file of tensors is refused by its declared size, before its first byte. A refusal is answered with a
gRPC status and a reason in one line, and recorded in the server's events (in a flood, only some are). An
upload ends, and its received part is deleted, when its instruction has been answered or closed.
"""

WIRE_LIMITS = (
    Limit(
        "client.hosts.leader:STREAMS_MAX",
        "the connections of a machine that has joined",
        "client/hosts/test_strangers.py::test_connections_of_a_member",
    ),
    Limit(
        "client.hosts.wire:STREAM_S_MAX",
        "how long one machine of a site waits for what it has asked of another",
        "client/hosts/test_strangers.py::test_a_member_that_does_not_answer",
    ),
    Limit(
        "client.hosts.leader:PENDING_MAX",
        "connections to a machine that leads others of its site, before a certificate is shown; the oldest goes",
        "client/hosts/test_strangers.py::test_garbage_and_silence",
    ),
    Limit(
        "client.hosts.wire:HANDSHAKE_S_MAX",
        "the time from such a connection to its first message",
        "client/hosts/test_strangers.py::test_the_silent_are_hung_up_on",
    ),
    Limit(
        "client.hosts.wire:SILENT_S_MAX",
        "the silence of a machine after which it is lost",
        "client/hosts/test_strangers.py::test_the_silent_are_hung_up_on",
    ),
    Limit(
        "client.hosts.wire:LINE_BYTES_MAX",
        "one message between machines of a site",
        "client/hosts/test_strangers.py::test_what_a_member_may_not_say",
    ),
    Limit(
        "client.hosts.wire:RANKS_MAX",
        "the ranks of one machine",
        "client/hosts/test_strangers.py::test_what_a_member_may_not_say",
    ),
    Limit(
        "transport.relaying:LEAVES_MAX",
        "the clients of one relay",
        "server/daemon/test_relays.py::test_a_relay_says_whom_it_has",
    ),
    Limit(
        "server.daemon.daemon:MESSAGE_BYTES_MAX",
        "one message from an enrolled client",
        "faults/test_oversize.py::test_message",
    ),
    Limit(
        "server.daemon.daemon:ENROLL_MESSAGE_BYTES_MAX",
        "one message from a stranger",
        "faults/test_oversize.py::test_requests_for_certificates",
    ),
    Limit(
        "transport.metrics_listener:CONNECTIONS_MAX",
        "connections to /metrics that are answered at once; others wait",
        "transport/test_metrics_listener.py::test_who_says_nothing_is_hung_up_on",
    ),
    Limit(
        "transport.metrics_listener:REQUEST_BYTES_MAX",
        "a request to /metrics",
        "transport/test_metrics_listener.py::test_one_page",
    ),
    Limit(
        "transport.metrics_listener:REQUEST_S_MAX",
        "the time of a request to /metrics, and of the answer",
        "transport/test_metrics_listener.py::test_who_says_nothing_is_hung_up_on",
    ),
    Limit(
        "transport.spans:TEXT_CHARS_MAX",
        "an attribute of a trace's span that a peer has named",
        "transport/test_tracing.py::test_what_a_peer_writes_is_bounded",
    ),
    Limit(
        "transport.trace_export:FLUSH_S_MAX",
        "the delay of a process's end by a collector of traces that does not answer",
        "transport/test_tracing.py::test_a_collector_that_is_away_is_not_waited_for",
    ),
    Limit(
        "server.worker.grid:SPANS_MAX",
        "rounds of a run that are traced at once; an app may begin many and finish none",
        "server/worker/test_grid.py::test_spans_of_rounds",
    ),
    Limit(
        "server.notify.receivers:SEND_S_MAX",
        "the time of one notice to a webhook, or of the command that gets it",
        "server/notify/test_receivers.py::test_the_slow_are_hung_up_on",
    ),
    Limit(
        "server.notify.receivers:ANSWER_BYTES_MAX",
        "what is read of a webhook's answer, up to the end of its first line",
        "server/notify/test_receivers.py::test_what_is_not_http",
    ),
    Limit(
        "server.notify.receivers:PRINTED_CHARS_MAX",
        "what is kept of a command's output",
        "server/notify/test_receivers.py::test_what_a_command_prints_is_the_reason",
    ),
    Limit(
        "server.notify.notifier:REFUSED_TRIES_MAX",
        "how often a receiver may refuse a notice before it is dropped",
        "server/notify/test_notifier.py::test_a_notice_that_is_refused",
    ),
    Limit(
        "server.notify.notifier:KEPT_S_MAX",
        "the age at which a notice is dropped that no receiver took",
        "server/notify/test_notifier.py::test_old_events_are_dropped",
    ),
    Limit(
        "pages.sessions:SESSIONS_MAX",
        "browsers that are signed in to one `meadow server page` or `meadow client page`; the one that was used least recently is signed out",
        "pages/test_sessions.py::test_sessions_end",
    ),
    Limit(
        "pages.sessions:SESSION_IDLE_S",
        "a browser that asks for nothing for so long is signed out",
        "pages/test_sessions.py::test_sessions_end",
    ),
    Limit(
        "pages.web:FORM_BYTES_MAX",
        "a form of the pages",
        "server/pages/test_web.py::test_nothing_is_done_by_a_foreign_page",
    ),
    Limit(
        "pages.serve:REQUEST_BYTES_MAX",
        "the head of a request to the pages",
        "server/pages/test_serve.py::test_a_page_is_renewed",
    ),
    Limit(
        "pages.serve:CONNECTIONS_MAX",
        "connections of browsers to the pages; further ones are answered 503",
        "server/pages/test_serve.py::test_a_page_is_renewed",
    ),
    Limit(
        "server.daemon.server_dir:INVITATION_HOURS_MAX",
        "hours that a token, or the invitation with it, is valid",
        "cli/test_invite.py::test_too_long",
    ),
    Limit(
        "server.daemon.daemon:STREAMS_PER_CONNECTION_MAX",
        "calls at once on one connection",
        "faults/test_half_messages.py::test_with_a_certificate",
    ),
    Limit(
        "server.daemon.daemon:CALLS_WAITING_MAX",
        "calls of clients that wait to be taken up; further ones are cancelled, and made again",
        "server/test_bounds.py::test_calls_wait_while_the_server_is_busy",
    ),
    Limit(
        "server.daemon.calls:MESSAGE_WAIT_S",
        "wait for the first message of a call, once its sender is authenticated",
        "faults/test_half_messages.py::test_with_a_certificate",
    ),
    Limit(
        "server.daemon.calls:FIRST_MESSAGES_MAX",
        "calls whose first message is incomplete; the client with the most of them loses "
        "its oldest",
        "faults/test_half_messages.py::test_with_a_certificate",
    ),
    Limit(
        "server.daemon.calls:FIRST_MESSAGES_EACH_MAX",
        "such calls of one client",
        "faults/test_half_messages.py::test_with_a_certificate",
    ),
    Limit(
        "server.daemon.calls:CROWDED_WAIT_S",
        "such a call while clients without one wait for their turn",
        "server/daemon/test_first_messages.py::test_places_are_not_held_while_others_wait",
    ),
    Limit(
        "server.daemon.stream_limiter:SLOW_STEPS_MAX",
        "slow chunks in transfer, of all clients; the client with the most of them loses "
        "its oldest",
        "server/daemon/test_slots.py::test_too_many_slow_steps",
    ),
    Limit(
        "server.daemon.blob_service:WINDOW_BYTES_MAX",
        "what a client may send on a call ahead of what is read of it; of many clients each has less",
        "server/test_bounds.py::test_what_clients_may_send_ahead",
    ),
    Limit(
        "server.daemon.floods:FRUITLESS_BYTES_PER_S_MAX",
        "bytes per second of a connection that belong to no message, beyond the first 10 "
        "MiB of a client and 1 MiB of a stranger; the connection is ended, event "
        "`flood_ended`",
        "faults/test_floods.py::test_a_flood_is_ended",
    ),
    Limit(
        "server.daemon.daemon:ENROLL_CONNECTIONS_MAX",
        "connections of strangers at once",
        "faults/test_enrollment.py::test_beside_a_crowd",
    ),
    Limit(
        "server.daemon.daemon:ENROLL_STREAMS_MAX",
        "calls at once on one connection of a stranger",
        "faults/test_enrollment.py::test_beside_a_crowd",
    ),
    Limit(
        "server.daemon.enrollment:STRANGERS_MAX",
        "enrolment calls that have not sent a token; the address with the most of them loses its oldest",
        "faults/test_half_messages.py::test_without_a_certificate",
    ),
    Limit(
        "server.daemon.enrollment:TOKEN_WAIT_S",
        "wait for the token of an enrolment call",
        "faults/test_half_messages.py::test_without_a_certificate",
    ),
    Limit(
        "transport.codec:ENVELOPE_BYTES_MAX",
        "a reply without its tensors; a large one is sent as a file",
        "faults/test_half_messages.py::test_a_reply_in_a_file",
    ),
    Limit(
        "client.agent.line:CHUNK_BYTES_MIN",
        "smallest chunk on an unreliable line",
        "faults/test_bad_lines.py::test_a_large_model_arrives",
    ),
    Limit(
        "server.daemon.blob_service:TRANSFERS_AT_ONCE_MAX",
        "uploads and downloads of one client at once",
        "faults/test_oversize.py::test_many_transfers",
    ),
    Limit(
        "config.server_config:REPLY_BYTES_MIN",
        "files of one reply, or 8 times the size of the tensors that were sent, whichever is larger; `reply_bytes_min`",
        "faults/test_oversize.py::test_more_than_the_model_needs",
    ),
    Limit(
        "config.server_config:CLIENT_BYTES_MAX",
        "files of one client's replies, from their declaration until the round is committed; "
        "`client_bytes_max`",
        "server/daemon/test_spool.py::test_a_client_has_a_quota_over_all_its_instructions",
    ),
    Limit(
        "config.server_config:SPOOL_BYTES_MAX",
        "files of all replies; `spool_bytes_max`",
        "server/daemon/test_spool.py::test_all_clients_together_have_a_quota",
    ),
    Limit(
        "server.daemon.spool:ABANDONED_S",
        "time that a partial upload is kept for its continuation",
        "server/daemon/test_spool.py::test_abandoned_uploads_are_deleted",
    ),
    Limit(
        "config.client_config:RECEIVED_BYTES_MAX",
        "tensors of one instruction, unless `policy.received_bytes_max` sets another bound",
        "client/owner/test_policy.py::test_more_tensors_than_the_owner_allows",
    ),
    Limit(
        "server.daemon.spool:BLOBS_PER_REPLY_MAX",
        "files of tensors in one reply",
        "faults/test_oversize.py::test_many_blobs",
    ),
    Limit(
        "server.daemon.fleet:RENEWALS_MAX",
        "certificate renewals of a client in a burst; after that, one in a quarter of an hour",
        "faults/test_enrollment.py::test_many_renewals",
    ),
    Limit(
        "transport.identity:PEM_BYTES_MAX",
        "a certificate or a request for one",
        "faults/test_oversize.py::test_requests_for_certificates",
    ),
    Limit(
        "transport.codec:PLAIN_BYTES_MAX",
        "arrays other than tensors, in one message",
        "faults/test_oversize.py::test_plain_bytes_of_all_records",
    ),
    Limit(
        "server.daemon.stream_limiter:STEP_S_MAX",
        "time for one chunk, on any line",
        "server/test_bounds.py::test_a_step_that_takes_too_long",
    ),
    Limit(
        "server.daemon.stream_limiter:PATIENCE_S",
        "time after which a chunk counts as slow",
        "server/daemon/test_slots.py::test_a_slow_step_gives_its_slot_back",
    ),
    Limit(
        "server.daemon.daemon:HANDSHAKE_MS_MAX",
        "time for the handshake of a connection, in milliseconds",
        "server/test_bounds.py::test_connections_that_do_not_even_begin",
    ),
    Limit(
        "server.daemon.daemon:ENROLL_CONNECTION_MS_MAX",
        "lifetime of a stranger's connection, in milliseconds; a call under way may take as long again",
        "server/test_bounds.py::test_a_strangers_connection_is_ended",
    ),
    Limit(
        "server.daemon.agent_registry:OUTGOING_MAX",
        "messages queued for an agent that does not read; it is then disconnected",
        "server/test_bounds.py::test_an_agent_that_does_not_read_is_cut_off",
    ),
    Limit(
        "server.daemon.audit_limiter:CALLERS_MAX",
        "callers whose rates are tracked",
        "server/test_bounds.py::test_callers_are_forgotten",
    ),
    Limit(
        "server.daemon.audit_limiter:BURST",
        "refusals of one caller that are recorded in a burst; after that, one per second",
        "server/test_bounds.py::test_refusals_of_a_flood",
    ),
    Limit(
        "server.daemon.peer_auth:FOREIGN_EVERY_S",
        "time after which it is recorded again that a client has another version of the protocol",
        "faults/test_streams.py::test_another_protocol",
    ),
    Limit(
        "server.daemon.fleet:RENEWAL_EVERY_S",
        "time until a client that has used up its renewals may renew again",
        "faults/test_enrollment.py::test_many_renewals",
    ),
    Limit(
        "server.journal.journal:EVENTS_PER_RUN_MAX",
        "events stored for each run, and for the server",
        "server/test_bounds.py::test_events_of_a_run",
    ),
    Limit(
        "server.journal.journal:TEXT_CHARS_MAX",
        "a line of the log",
        "server/test_bounds.py::test_events_of_a_run",
    ),
    Limit(
        "server.daemon.admin:APP_ZIP_BYTES_MAX",
        "a submitted app",
        "server/test_bounds.py::test_what_an_administrator_asks_for",
    ),
    Limit(
        "server.daemon.admin:RUN_ID_MAX",
        "a run's number",
        "server/test_bounds.py::test_what_an_administrator_asks_for",
    ),
    Limit(
        "transport.pipe:FRAME_BYTES_MAX",
        "one message between the daemon and a run's worker",
        "server/test_bounds.py::test_a_workers_message",
    ),
    Limit(
        "server.daemon.quotas:REPLY_TIMES_MAX",
        "size of a reply relative to the tensors that were sent",
        "faults/test_oversize.py::test_more_than_the_model_needs",
    ),
    Limit(
        "transport.proxy:ANSWER_BYTES_MAX",
        "bytes read of a proxy's answer",
        "transport/test_proxy.py::test_a_proxy_that_does_not_stop_talking",
    ),
)

DISK = """\
## What is on disk

| event | result |
|---|---|
| a bit of a checkpoint or its manifest flips | its checksum fails: the round before is used, event `checkpoint_damaged` |
| a bit of a run's instruction or reply flips, in the journal or in the spool | the run fails and names the row or file; `meadow run resume` repeats the round |
| a bit of another row of the journal, of `agent.sqlite` or of a run's `privacy.sqlite` flips | the daemon, the agent or the run does not start and names the row; `meadow server check --repair` saves the intact rows of a journal |
| a bit of an app flips between submission and a worker's start | the run fails: the app is not the one that was submitted |
| a bit of a write-ahead log (`-wal`) of one of these flips between a kill and the next start | likewise; `meadow server check --repair` saves what was committed behind it too |
| a bit of a client's identity flips | the agent ends, and names the file |
| a disk is full | nothing is half written: the daemon waits for room, a client answers with the cause |
| the power is cut | everything that a commit names was synced before it |
| a file is of another version of Meadow | it is brought up to date, or refused with what to do |

Checksums are CRC-32: they detect accidents, not an attacker who can write to the folder. They do not
cover `metrics.jsonl`, on which no model depends. In a write-ahead log a single flipped bit is always
detected; several flipped bits are detected if two transactions follow them, because a power cut can leave
the last transaction in the same state.
"""

DISK_LIMITS = (
    Limit(
        "server.daemon.threads:RETRY_S_MAX",
        "time between two attempts to write to a full disk, in seconds",
        "server/daemon/test_supervisor.py::test_an_end_on_a_full_disk_is_written_when_there_is_room",
    ),
    Limit(
        "server.daemon.supervisor:STOP_WAIT_S",
        "time for a run's worker to stop before it is killed, in seconds",
        "server/daemon/test_supervisor.py::test_an_end_on_a_full_disk_is_written_when_there_is_room",
    ),
    Limit(
        "server.daemon.supervisor:DEATHS_MAX",
        "crashes of a run's worker without a completed round in between, after which the run fails",
        "federation/test_kill.py::test_run_survives",
    ),
    Limit(
        "run.checkpoints:CHECKPOINTS_KEPT",
        "checkpoints that a run keeps",
        "run/test_run_folder.py::test_the_newest_checkpoint_comes_back",
    ),
    Limit(
        "transport.file_pool:POOLED_FILES_MAX",
        "spare files that are kept to be overwritten",
        "transport/test_file_pool.py::test_bounds",
    ),
    Limit(
        "transport.file_pool:SPARES_BYTES_MAX",
        "size of all spare files",
        "transport/test_file_pool.py::test_bounds",
    ),
)

WORDS = """\
## Messages of a server or a client

Every message of a peer is checked before it is used, field by field, and a fault raises an
error of `errors.py`. `transport/fields.py` bounds the length, the value or the number of each field of each
message between agents and servers; `transport/codec.py` checks the records of an
envelope, `privacy/secagg/terms/terms.py` and `privacy/secagg/terms/announcement.py` a server's terms of a secure
sum, `training/settings.py` its settings for training, `strategies/rounds/checks.py` a client's
update. An instruction that still raises an error is answered as failed; the agent goes on, also
after a restart, when the instruction arrives again.

In a secure sum, one attack remains to a lying server: to send one client another instruction than the others,
so that the sum reveals the update of that client. So everything that a client's work depends on is in
the hash under all keys and signatures (docs/secure-aggregation.md, "In a run"), and clients with
different instructions cannot complete a sum together. The hash cannot cover the past: an app's state
between rounds, and the rounds in which its client took part.
"""

WORDS_LIMITS = (
    Limit(
        "transport.fields:ID_CHARS_MAX",
        "an instruction's id",
        "transport/test_fields.py::test_both_ends_of_every_bound",
    ),
    Limit(
        "transport.fields:METADATA_CHARS_MAX",
        "each text of a message's metadata, its group among them",
        "client/agent/test_hostile_instructions.py::test_none_ends_the_agent",
    ),
    Limit(
        "transport.fields:RUN_CONFIG_MAX",
        "values of a run config",
        "transport/test_fields.py::test_every_field_has_a_rule",
    ),
    Limit(
        "transport.fields:SITES_MAX",
        "sites that a server may announce",
        "client/agent/test_hostile_instructions.py::test_none_ends_the_agent",
    ),
    Limit(
        "transport.fields:ERROR_CHARS_MAX",
        "the reason of an error",
        "transport/test_fields.py::test_both_ends_of_every_bound",
    ),
    Limit(
        "transport.codec:ENTRIES_BYTES_MAX",
        "metrics and configuration in one message",
        "transport/test_codec.py::test_senders_keep_the_bounds",
    ),
    Limit(
        "transport.codec:RECORDS_MAX",
        "records of one message",
        "transport/test_codec.py::test_senders_keep_the_bounds",
    ),
    Limit(
        "privacy.secagg.terms.terms:CLIENTS_MAX",
        "clients of one secure sum",
        "privacy/secagg/terms/test_terms.py::test_a_malformed_announcement",
    ),
    Limit(
        "privacy.secagg.terms.terms:METRICS_COUNT_MAX",
        "metrics in a secure sum",
        "privacy/secagg/terms/test_terms.py::test_terms_that_cannot_be",
    ),
    Limit(
        "training.settings:WHOLE_MAX",
        "each whole number in the training settings, such as the epochs",
        "training/test_settings.py::test_impossible_settings_are_refused",
    ),
    Limit(
        "transport.fields:NAME_CHARS_MAX",
        "each other text, such as a client's name",
        "transport/test_fields.py::test_both_ends_of_every_bound",
    ),
    Limit(
        "transport.fields:SECONDS_MAX",
        "each time, in seconds",
        "transport/test_fields.py::test_both_ends_of_every_bound",
    ),
    Limit(
        "transport.header:HEADER_BYTES_MAX",
        "the head of a file of tensors",
        "transport/test_tensors.py::test_sizes_are_bounded_before_anything_is_read",
    ),
    Limit(
        "transport.header:TENSORS_MAX",
        "tensors in a file",
        "transport/test_tensors.py::test_too_many_tensors_are_refused",
    ),
    Limit(
        "transport.header:NAME_BYTES_MAX",
        "a tensor's name",
        "transport/test_tensors.py::test_names_are_bounded",
    ),
    Limit(
        "transport.header:DIMENSIONS_MAX",
        "a tensor's dimensions",
        "transport/test_tensors.py::test_hostile_files_are_refused",
    ),
    Limit(
        "compression.terms:VALUES_MAX",
        "values of a compressed model",
        "compression/test_packet.py::test_impossible_forms_are_refused",
    ),
    Limit(
        "privacy.secagg.terms.terms:METRIC_CHARS_MAX",
        "the name of a metric in a secure sum",
        "privacy/secagg/terms/test_terms.py::test_a_malformed_announcement",
    ),
    Limit(
        "privacy.secagg.terms.announcement:CERTIFICATE_BYTES_MAX",
        "the certificate of a client's key in an announcement",
        "privacy/secagg/terms/test_terms.py::test_a_malformed_announcement",
    ),
    Limit(
        "privacy.secagg.protocol.encoding:LENGTH_MAX",
        "values of a secure sum",
        "privacy/secagg/protocol/test_encoding.py::test_an_encoding_that_cannot_be",
    ),
    Limit(
        "privacy.secagg.protocol.encoding:VALUE_BOUND_MAX",
        "the bound of a secure sum's values",
        "privacy/secagg/protocol/test_encoding.py::test_an_encoding_that_cannot_be",
    ),
    Limit(
        "training.settings:NUMBER_MAX",
        "each other number in the training settings",
        "training/test_settings.py::test_impossible_settings_are_refused",
    ),
    Limit(
        "privacy.secagg.client.introduction:AGE_S_MAX",
        "the age of a client's advertised keys for a secure sum",
        "privacy/secagg/test_beacon.py::test_an_introduction_is_not_good_for_long",
    ),
    Limit(
        "client.agent.agent:LEASE_S_MAX",
        "a lease, whatever the server announces; at least a second",
        "client/agent/test_bounds.py::test_a_lease",
    ),
    Limit(
        "client.agent.assignments:INSTRUCTIONS_MAX",
        "instructions queued at a client; it refuses further ones",
        "client/agent/test_bounds.py::test_instructions_that_wait",
    ),
    Limit(
        "client.owner.ledger:REFUSALS_MAX",
        "refusals that a client stores",
        "client/agent/test_bounds.py::test_refusals_that_are_kept",
    ),
    Limit(
        "client.owner.ledger:APP_CHARS_MAX",
        "an app's name in a stored refusal",
        "client/agent/test_bounds.py::test_refusals_that_are_kept",
    ),
    Limit(
        "client.agent.state:RUNS_MAX",
        "runs whose state a client stores",
        "client/agent/test_bounds.py::test_runs_and_replies_that_are_remembered",
    ),
    Limit(
        "client.agent.state:REPLIES_MAX",
        "replies of a client that wait for acknowledgement",
        "client/agent/test_bounds.py::test_runs_and_replies_that_are_remembered",
    ),
    Limit(
        "privacy.secagg.client.session:LIVE_MAX",
        "secure sessions held in memory; others are replayed from their messages",
        "privacy/secagg/test_restart.py::test_clients_in_other_processes_for_every_message",
    ),
    Limit(
        "client.agent.training:REASON_CHARS_MAX",
        "the reason of a client's failure",
        "client/agent/test_bounds.py::test_what_a_failure_says",
    ),
    Limit(
        "client.agent.clock:SKEW_S_MAX",
        "difference between the clocks of a client and the server; a larger one is reported",
        "client/agent/test_bounds.py::test_clocks_that_agree",
    ),
    Limit(
        "server.daemon.steps:REASON_CHARS_MAX",
        "the server's reason for a client's failure",
        "server/test_bounds.py::test_reasons_are_short",
    ),
    Limit(
        "run.failed_clients:KEPT_MAX",
        "failed clients listed for a round",
        "server/test_bounds.py::test_failures_that_are_listed",
    ),
    Limit(
        "run.failed_clients:CAUSES_MAX",
        "causes of failures in a run's summary",
        "server/test_bounds.py::test_failures_that_are_listed",
    ),
    Limit(
        "run.failed_clients:SITES_MAX",
        "sites named for each cause",
        "server/test_bounds.py::test_failures_that_are_listed",
    ),
    Limit(
        "run.failed_clients:ROUNDS_MAX",
        "rounds whose failures are held until the round is recorded",
        "server/test_bounds.py::test_failures_that_are_listed",
    ),
    Limit(
        "run.run_folder:TRACEBACKS_BYTES_MAX",
        "tracebacks of clients that a run stores",
        "run/test_run_folder.py::test_tracebacks_are_kept_up_to_a_bound",
    ),
    Limit(
        "run.run_folder:TRACEBACK_CHARS_MAX",
        "the end of each traceback that is stored",
        "run/test_run_folder.py::test_tracebacks_are_kept_up_to_a_bound",
    ),
    Limit(
        "run.app_output:LOG_BYTES_MAX",
        "what an app prints, in a run's `app.log`",
        "run/test_app_output.py::test_a_full_file_takes_no_more",
    ),
    Limit(
        "run.app_output:TAKEN_CHARS_MAX",
        "output of a simulation's worker process in one step",
        "run/test_app_output.py::test_what_another_process_prints_comes_along",
    ),
    Limit(
        "privacy.secagg.server.group:OVERHEAD_BYTES_MAX",
        "a masked vector, beyond the bytes of its values",
        "privacy/secagg/test_lying_clients.py::test_what_a_client_may_not_say",
    ),
)

APP_LIMITS = (
    Limit(
        "client.owner.offers:OFFERS_MAX",
        "apps that wait for a site's owner",
        "client/owner/test_offers.py::test_bounds",
    ),
    Limit(
        "client.owner.offers:ARCHIVE_BYTES_MAX",
        "an offered app's archive, and what is in it",
        "client/owner/test_offers.py::test_bounds",
    ),
    Limit(
        "transport.fields:APP_SIGNATURE_BYTES_MAX",
        "an author's signature",
        "transport/test_fields.py::test_both_ends_of_every_bound",
    ),
    Limit(
        "transport.app_signature:FILE_BYTES_MAX",
        "the file of an author's signature",
        "client/owner/test_offers.py::test_signatures_are_of_one_app_one_content_and_one_time",
    ),
)

BESIDES = {
    "a parameter of a method: its value affects the result, and no use of resources": """
        client.tools.batch_probe:BATCH_MAX client.tools.batch_probe:MEMORY_FILLED_MAX training.algorithms.algorithms:EXPONENT_MAX
        training.parallel.choice:FILLED_MAX compression.numbers:FINITE_MAX privacy.dp.mechanisms.adaptive:NORM_MAX
        privacy.dp.noise_terms:NUMBER_MAX privacy.dp.noise_terms:STEPS_MAX
        privacy.dp.accounting.calibration:MULTIPLIER_MAX privacy.dp.accounting.calibration:ROUNDS_MAX
        privacy.dp.accounting.gaussian:EPSILON_MAX privacy.dp.mechanisms.inversion:STDDEV_MAX privacy.dp.mechanisms.parts:ALONE_MAX
        privacy.dp.mechanisms.parts:THREADS_MAX privacy.dp.mechanisms.rounding:TRIES_MAX privacy.dp.correlated.toeplitz:HALVINGS_MAX
        privacy.dp.correlated.toeplitz:PAIRS_KEPT privacy.dp.correlated.toeplitz:STEPS_MAX privacy.secagg.protocol.shamir:POINTS_MAX
        privacy.secagg.protocol.topology:COMPLETE_MAX privacy.secagg.protocol.topology:NEIGHBOURS_MAX
        run.tensorboard:FLOAT32_MAX server.daemon.lines:FAST_BYTES_PER_S server.daemon.lines:SLOW_BYTES_PER_S""",
    "set by a format": """
        transport.relaying:NODE_MAX transport.run_sites:BITS_MAX transport.chunk_wire:_VARINT_BYTES_MAX transport.header:_EXTENT_BYTES_MAX
        transport.header:_MARKS_MAX transport.write_ahead_log:PAGE_BYTES_MAX""",
    "an interval or a timeout of work that this side does for itself": """
        client.agent.agent:LEAVES_EVERY_S client.agent.agent:RENEWAL_CHECK_S client.agent.agent:STEADY_S client.agent.assignments:CANCEL_GRACE_S
        client.agent.connection:ANSWER_WAIT_S
        client.agent.connection:KEEPALIVE_MS client.agent.connection:UNACKNOWLEDGED_MS_MAX
        client.agent.connection:PING_ANSWER_MS_MAX training.device_meter:SAMPLE_S client.tools.enroll:ANSWER_WAIT_S
        client.tools.batch_probe:TRIALS_S_MAX training.parallel.group:ATTEMPTS_MAX training.parallel.group:REPORT_WAIT_S
        training.parallel.group:START_WAIT_S training.parallel.local_barrier:LOOKING_S
        client.agent.process:EXIT_WAIT_S client.worker.training_process:STEP_S client.tools.doctor:WAIT_S
        client.agent.delivery:LOG_RETRY_S client.owner.gate:LOOK_EVERY_S client.agent.uplink:RETRY_S_MAX client.agent.warm_process:ATTEMPTS_MAX server.daemon.daemon:DRAIN_S
        server.daemon.condition_watch:EPSILON_S_MAX server.daemon.condition_watch:LOOKED_EVERY_S
        server.notify.notifier:DEFECT_PAUSE_S server.notify.notifier:PAUSE_S server.notify.notifier:PAUSE_S_MAX
        server.notify.receivers:LAST_WORDS_S server.daemon.storage:MEASURED_EVERY_S server.daemon.storage:PRUNED_EVERY_S
        server.tools.doctor:REACH_S
        server.daemon.daemon:FLOODS_EVERY_S server.daemon.daemon:MEMORY_KEPT_S server.daemon.enrollment:GUESS_S
        server.worker.grid:NO_DEADLINE_S server.daemon.threads:RETRY_S transport.database:BUSY_WAIT_MS
        transport.file_pool:OPENINGS_MAX transport.file_pool:OPENING_WAIT_S server.remote.connection:CONNECT_S
        server.remote.runs:CALL_S server.remote.runs:SUBMIT_S
        server.pages.followed_run:CLOSE_S server.pages.remote_server:CALL_S server.pages.remote_server:FIRST_ROUNDS_S
        client.agent.lock:BETWEEN_ATTEMPTS_S client.agent.token_bucket:BURST_S
        client.owner.gate:SETTLING_S client.owner.gate:TOLD_AGAIN_S server.pages.remote_server:STOP_S pages.serve:DRAIN_S pages.web:RENEWED_EVERY_S
        pages.web:SILENCE_S client.hosts.member:RETRY_S client.hosts.wire:PING_S""",
    "how much this side does, sends, stores or shows by itself; a peer cannot increase it": """
        server.daemon.admin:EVENTS_SENT_MAX server.pages.curves:POINTS_MAX server.pages.followed_run:EVENTS_KEPT_MAX
        server.pages.followed_run:ROUNDS_KEPT_MAX server.pages.remote_server:RUNS_FOLLOWED_MAX server.pages.views:CURVES_MAX
        client.hosts.link:CALL_BYTES_MAX client.hosts.member:HOSTS_MAX client.hosts.membership:PASS_CHARS_MAX
        client.hosts.wire:COPY_BYTES_MAX
        training.local.app:SITES_KEPT_MAX client.agent.connection:LOOKAHEAD_BYTES_MAX client.agent.delivery:DELIVERIES_MAX
        client.agent.delivery:REPLY_BYTES_MAX client.agent.execution:CORRUPT_MAX
        client.agent.line:UPLOAD_CHUNK_BYTES_MAX training.mid_epoch:SIZE_BYTES_MAX training.mid_epoch:STEPS_KEPT
        client.owner.offers:DIFF_BYTES_MAX client.owner.offers:DIFF_LINES_MAX client.owner.offers:REFUSED_MAX
        training.parallel.instructions:FRAME_BYTES_MAX training.parallel.pipeline:SHAPES_KEPT_MAX
        training.parallel.shared_sums:TOTALS_MAX client.agent.process:LOG_BYTES_MAX client.tools.profiling:STEPS_MAX
        privacy.secagg.client.app:TTL_S client.owner.secure_certificate:CHECKED_MAX privacy.secagg.client.past:MODELS_MAX
        client.agent.transfer:UPLOAD_SETBACKS_MAX server.daemon.daemon:SENT_MESSAGE_BYTES_MAX
        server.daemon.condition_watch:ENDING_DAYS_MAX server.notify.notices:DETAILS_MAX server.notify.notices:SUBJECT_CHARS_MAX
        server.notify.notices:TEXT_CHARS_MAX server.notify.notifier:READ_MAX server.notify.receivers:KEY_BYTES_MAX
        server.tools.doctor:BACKUP_DAYS_MAX server.tools.doctor:BACKUP_LINES_MAX server.tools.doctor:CLOCK_S_MAX
        server.tools.doctor:NAMED_MAX compression.grid:LISTED_MAX run.disk_needs:REPLIES_KEPT
        run.first_params:OUTPUT_CHARS_MAX run.flower_run:CLIENTS_SHOWN_MAX run.flower_run:REASONS_SHOWN_MAX
        server.daemon.backup:MANIFEST_BYTES_MAX server.daemon.backup:TRIES_MAX
        server.worker.grid:PACKED_TOGETHER_MAX server.worker.grid:REASON_CHARS_MAX
        server.worker.relayed_replies:REASON_CHARS_MAX server.daemon.supervisor:PENDING_MAX
        server.daemon.threads:TOGETHER_MAX transport.chunk_reader:CHUNK_BYTES_MAX
        transport.database:PROBLEMS_MAX transport.identity:IDENTITIES_KEPT
        transport.packed:PACKED_BYTES_MAX transport.reach:CHAIN_MAX transport.writer:REMEMBERED_MAX""",
    "a bound of gRPC's that is larger than another bound in a table": """
        client.agent.connection:BLOB_BYTES_MAX client.agent.connection:MESSAGE_BYTES_MAX
        server.remote.connection:MESSAGE_BYTES_MAX""",
    "stated in the row of `FRUITLESS_BYTES_PER_S_MAX`": "server.daemon.daemon:FRUITLESS_BYTES_MAX",
}
"""Constants that are named like limits and are not in a table, by the reason."""

ROLES = """\
## Roles and the audit log

`server/daemon/routes.py` has every call and the roles that may make it. A call that is not in this table is
refused to everybody, and a test fails. A certificate is valid while it has not expired, the authority has issued it,
and the server's folder has its serial under its name (`ca/roles/`, `ca/admin-serial`), with the same role: two
places that both have to say so. They are read at every call, before every message of a stream, every few
seconds while a stream is silent, and again after the last message of a submission.

An action is recorded before it begins, durably, and again when it has ended; if the first cannot be written, the action
is not made. Reads (Status, Watch and the like) and refusals are recorded at a limited rate, with the number of those
that have no line. A caller without a certificate of this authority ends in the handshake, below every call, and is in no log.
Values of settings, tokens and keys are in no line.

Each line has the SHA-256 of the line before, and `head` the hash of the last one. `meadow server audit --verify` names
the first line that was changed, removed, inserted or moved, and a missing beginning or end.

| not noticed by `--verify` alone | noticed by |
|---|---|
| the log written anew from some line on, with all hashes and `head`, by somebody who can write in the server's folder | `meadow server audit --head LINE:HASH`, with a head that was kept elsewhere |
| the whole folder `audit/` deleted, or replaced by an older copy with its `head` | the same |
| lines cut off the end together with a matching `head` | the same |
| commands on the server's machine that write into its folder without Meadow | nothing |

Keep heads where the server's operator cannot change them: a head vouches for all lines up to it.
"""

ROLES_LIMITS = (
    Limit(
        "server.journal.audit_log:FILE_BYTES_MAX",
        "a file of the audit log; then the next begins",
        "server/journal/test_audit_log.py::test_the_files_are_bounded",
    ),
    Limit(
        "server.journal.audit_log:FILES_MAX",
        "files of the audit log; the oldest is dropped, and a line says so",
        "server/journal/test_audit_log.py::test_the_files_are_bounded",
    ),
    Limit(
        "server.journal.audit_log:LINE_BYTES_MAX",
        "a line of the audit log",
        "server/journal/test_audit_log.py::test_what_a_line_holds_is_bounded",
    ),
    Limit(
        "server.journal.audit_log:WHAT_BYTES_MAX",
        "what a line says of the arguments",
        "server/journal/test_audit_log.py::test_what_a_line_holds_is_bounded",
    ),
    Limit(
        "client.owner.sent_log:RESULTS_KEPT_MAX",
        "results in a client's log of what has left; the oldest are dropped",
        "client/owner/test_sent_log.py::test_refusals_displace_no_result",
    ),
    Limit(
        "client.owner.sent_log:REFUSALS_KEPT_MAX",
        "refusals and failures in it; they displace no results",
        "client/owner/test_sent_log.py::test_refusals_displace_no_result",
    ),
    Limit(
        "client.owner.sent_log:TEXT_CHARS_MAX",
        "a text in a row of it",
        "client/owner/test_sent_log.py::test_refusals_displace_no_result",
    ),
    Limit(
        "transport.invitation:TEXT_CHARS_MAX",
        "the text of an invitation",
        "transport/test_invitation.py::test_a_long_text",
    ),
    Limit(
        "server.journal.audit_log:TEXT_CHARS_MAX",
        "a text in a line",
        "server/journal/test_audit_log.py::test_what_a_line_holds_is_bounded",
    ),
    Limit(
        "server.journal.audit_log:ITEMS_MAX",
        "entries of the arguments in a line, and of each list in them",
        "server/journal/test_audit_log.py::test_what_a_line_holds_is_bounded",
    ),
    Limit(
        "server.daemon.audit_trail:SIMILAR_BURST",
        "reads of one call by one caller, and refusals of one caller, that are recorded in a burst",
        "server/daemon/test_routes.py::test_actions_and_their_ends",
    ),
    Limit(
        "server.daemon.audit_trail:SIMILAR_EVERY_S",
        "time until a further one of these is recorded; callers without a certificate count as one",
        "server/daemon/test_routes.py::test_refusals_are_bounded",
    ),
    Limit(
        "server.daemon.audit_trail:REFUSED_BURST",
        "refusals of all clients and strangers that are recorded in a burst",
        "server/daemon/test_routes.py::test_refusals_are_bounded",
    ),
    Limit(
        "server.daemon.audit_trail:REFUSED_EVERY_S",
        "time until a further one of these is recorded",
        "server/daemon/test_routes.py::test_refusals_are_bounded",
    ),
    Limit(
        "server.daemon.audit_trail:UNRECORDED_MAX",
        "callers and calls whose reads without a line are counted",
        "server/daemon/test_routes.py::test_reads_are_bounded",
    ),
    Limit(
        "server.daemon.administration:ADMITTED_EVERY_S",
        "time until a silent stream of somebody whose certificate was revoked ends",
        "server/daemon/test_routes.py::test_revoked_while_a_call_is_open",
    ),
)

RELAYS = """\
## Relays

A relay is trusted by the clients below it as a server is, and by the server as all of its clients are: it can send sums
of updates that nobody has made, as these clients could. It cannot do more:

| attack | result |
|---|---|
| a relay that lists nodes which are not numbered below it, or too many | its connection ends |
| a client of the server's own that calls itself a relay | it is asked for nothing itself; only clients whose node ids begin with its own are |
| a reply that stands for clients that the relay was not asked for, or for one twice | all clients that it was asked for have failed in this round |
| a reply of no relay that claims to stand for other clients | refused; theirs count |
| a reply that claims many clients, so that the quorum is met | it counts for at most those that it was asked for |
| sums or rests of another shape or dtype, not finite, or at other positions; too many rests; other weights | refused by name |
| a client below that claims to stand for others below | refused by the relay, as the server does |
| a client below that does not clip, claims many examples, or more than one update within an adaptive clip | the relay clips it, and counts it once (`relay/test_private_answer.py`) |
| in a private round, a relay's sum that its clients could not have: k clients move it by more than k times the clip | the server scales its mean down to the clip |
| in a private round, a relay that says nothing of clipping, as it is of another version | its clients have failed in this round |

A relay that lies within these bounds can replace its clients' updates by one of them, which then counts k times: under
differential privacy that client's protection is not the claimed one. Nobody above can tell, so the relay is trusted with
it as with the updates themselves.
"""

APPS = """\
## Apps that a server offers

A run's instructions offer the app's files to a site that does not have this version. The agent fetches them into
`offers/`, where nothing is imported or run, and replies that the owner's approval is pending. The owner reviews
the version (`meadow client apps show NAME`), and approves a name and a hash, or refuses.

| attack | result |
|---|---|
| an archive with `../`, absolute paths, links, hidden files, names with terminal control characters, or a bomb | refused as a whole; nothing of it stays |
| files with another hash than the offered one, or an interrupted transfer | nothing of it stays |
| another version between the review and the approval | the approval names the hash: it fails |
| files that change on the disk before or during the approval | hashed before and after they are moved; deleted |
| an approved app that changes its own folder, and a server that then names that hash | it does not run: only the approved hash is valid, checked when an instruction comes and again by the process that loads the app |
| an instruction that names another function, of the app or of any installed package, as its algorithm | it fails: a client executes only the builder that `strategy.name` in its own copy's meadow.toml names, with arguments of that builder's types and bounds |
| text that is displayed differently from what is executed (escape sequences, characters that change the direction) | shown as `\\x1b`, `\\u202e` |
| an older version, approved once | only the last approved one is installed; an older one waits for the owner again |
| a signature under another name, other content or another time | invalid: all three are signed |
| an author's older signature, under a version with a known hole | not installed automatically once a newer one was |
| a flood of offers | a bounded number waits, and only the last one of each name |

Two risks remain: an owner who approves without a review, and a key in `apps.auto_approve`, whose holder can run
anything on this data that the policy allows. The server cannot sign; give the key to no server.
"""

TESTS = """\
## How it is tested

`tests/faults` attacks a live server with raw clients that send what no agent would; `tests/transport`
feeds every decoder with input that no encoder writes. Each row above names the test that fails if its limit
does not hold. `tests/faults/power_cut.py` is a disk that forgets what was not synced, and `make soak
SECONDS=3600` runs a federation under random kills, cut and corrupted lines, full disks and flipped bits, and
compares each model with that of an undisturbed run, byte by byte. `tests/fuzz` gives every decoder and every
field of an instruction 2,000 malformed inputs each, and allows only an error of `errors.py`, two seconds and
200 MiB; `make fuzz SECONDS=3600` continues, and keeps inputs that reach new code.
`tests/privacy/secagg/test_every_field.py` sends one client of a secure sum another instruction, field by field.
"""


GROUPS = (WIRE_LIMITS, DISK_LIMITS, WORDS_LIMITS, ROLES_LIMITS, APP_LIMITS)


def page() -> str:
    """Return the whole page."""
    parts = [INTRODUCTION, WIRE, table(WIRE_LIMITS), DISK, table(DISK_LIMITS)]
    parts += [
        WORDS,
        table(WORDS_LIMITS),
        ROLES,
        table(ROLES_LIMITS),
        RELAYS,
        APPS,
        table(APP_LIMITS),
        TESTS,
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def table(limits: tuple[Limit, ...]) -> str:
    """Return the table of some limits."""
    lines = ["| limit | bounds | where | held by |", "|---|---|---|---|"]
    for limit in limits:
        module, _, name = limit.place.partition(":")
        value = getattr(import_module(f"meadow.{module}"), name)
        place = f"`{module.replace('.', '/')}.py` `{name}`"
        lines.append(f"| {shown(name, value)} | {limit.bounds} | {place} | `{limit.test}` |")
    return "\n".join(lines)


def shown(name: str, value: float) -> str:
    """Return a value with its unit, which the constant's name contains."""
    if "BYTES" in name.split("_"):
        for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
            if value >= 1 << power:
                return f"{value / (1 << power):g} {unit}"
        return f"{value:g} bytes"
    unit = " s" if "S" in name.split("_") else " characters" if "CHARS" in name.split("_") else ""
    return f"{value:,}{unit}"


def limits() -> list[Limit]:
    """Return all limits of the page."""
    return [limit for group in GROUPS for limit in group]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
