"""Many nodes fetch one image, by the policies that live nodes go by.

Tracker, acquisition, announcements and upload limits are `dsec.distribution`'s own; this module is their shell. What it
adds is time: messages take a round trip, transfers what `dsec.sim.fleet.links` says (each link serves one after the
other at full speed), the origin sends so much in all, and dead nodes are noticed after a timeout.

Every node reads the chunks of its first command in the same order, as the same command does everywhere, and the rest in
an order of its own: two nodes that fetch everything at once then have different things to give to each other.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from dsec.distribution.acquisition import Acquisition, Ask, LookUp, Pause
from dsec.distribution.announcer import COMPLETE, Held
from dsec.distribution.messages import (
    Acknowledgement,
    Announcement,
    Answer,
    Candidate,
    Failure,
    FailureKind,
    Lookup,
    LookupReply,
    Report,
)
from dsec.distribution.tracker import Tracker
from dsec.distribution.uploads import Refused, Stage
from dsec.placement.trust import smoothed
from dsec.sim.calendar import Calendar, without_garbage_collection
from dsec.sim.distribution.crowd import Crowd
from dsec.sim.distribution.mailbox import Mailbox
from dsec.sim.distribution.measures import Measures
from dsec.sim.distribution.node import Nature, Question, SimNode, Transfer
from dsec.sim.distribution.scenario import DistributionScenario
from dsec.sim.distributions import Streams
from dsec.sim.fleet.links import Link
from dsec.sim.result import Result

_LAYER = "f" * 64
_TICK_S = 1.0
_REPORTED_CHUNKS = 1000
_NEIGHBOURS = 8


@dataclass(slots=True, eq=False)
class _Asked:
    """A lookup that is under way."""

    node: SimNode
    questions: list[Question]
    ahead: tuple[int, ...]
    sent_s: float
    over: bool = False


class DistributionModel:
    """The state of one run. Each method whose first argument is the time is an event."""

    def __init__(self, scenario: DistributionScenario, seed: int) -> None:
        self._scenario = scenario
        self._seed = seed
        streams = Streams(seed)
        self._chance = random.Random(streams.integer("troubles"))
        self._bits = random.Random(streams.integer("tracker")).getrandbits
        self.tracker = Tracker(scenario.tracker, self._bits)
        self.calendar = Calendar(64.0 * scenario.nodes)
        self.measures = Measures()
        self._origin = Link(scenario.origin_bytes_per_s)
        self._names = [f"{number:064x}" for number in range(scenario.chunks)]
        self._numbers = {name: number for number, name in enumerate(self._names)}
        crowd = Crowd(scenario, self._names, self._chance)
        self.nodes = crowd.nodes()
        self._by_name = {node.name: node for node in [*crowd.seeds(), *self.nodes]}
        self._left = scenario.nodes
        self._mailbox = Mailbox(self.calendar, scenario.round_trip_s / 2, scenario.tracker_request_s)
        self._progress: Callable[[float], None] | None = None
        self._expected = scenario.nodes * (scenario.chunks if scenario.all else scenario.first)
        self._here = 0

    # The run.

    def run(self, case: str = "", progress: Callable[[float], None] | None = None) -> Result:
        """Run until every node that lives has what it wants, at most as long as the scenario says.

        Args:
            case: a name for the result.
            progress: is told the share of chunks that are there.
        """
        scenario, calendar = self._scenario, self.calendar
        self._progress = progress
        for node in self._by_name.values():
            calendar.at(node.start_s, self._start, node)
        for at_s in scenario.troubles.tracker_restarts_s:
            calendar.at(at_s, self._restart_tracker)
        calendar.at(_TICK_S, self._tick)
        with without_garbage_collection():
            calendar.run(scenario.duration_s)
        return Result(
            scenario=scenario.title,
            case=case,
            seed=self._seed,
            simulated_s=calendar.now_s,
            events=calendar.events,
            counts={
                **self.measures.counts(self.nodes, scenario.image_bytes),
                "tracker_busy_s": self._mailbox.busy_s,
            },
            figures=self.measures.figures(self.nodes),
            series=self.measures.series(scenario.nodes),
        )

    def _start(self, now_s: float, node: SimNode) -> None:
        troubles = self._scenario.troubles
        if node.wanted and self._chance.random() < troubles.failing_share:
            self.calendar.at(now_s + self._chance.random() * troubles.failing_within_s, self._die, node)
        if self._scenario.way == "peers":
            self._announce(now_s, node)
            self.calendar.at(now_s + self._scenario.announcing.every_s, self._renew, node)
        self._fill(now_s, node)

    def _tick(self, now_s: float, _: None) -> None:
        self.tracker.expire(now_s)
        self.calendar.at(now_s + _TICK_S, self._tick)

    def _restart_tracker(self, now_s: float, _: None) -> None:
        self.tracker = Tracker(self._scenario.tracker, self._bits)

    def _die(self, now_s: float, node: SimNode) -> None:
        """A host that falls silent: whoever is getting something from it waits for more in vain."""
        if node.all_s < 0:
            self._finish(now_s)
        node.alive = False

    def _finish(self, now_s: float) -> None:
        self._left -= 1
        if not self._left:
            self.calendar.stop()

    # Fetching.

    def _fill(self, now_s: float, node: SimNode) -> None:
        """Begin as many fetches as a node has at a time; what begins at once is asked for at once."""
        room = self._scenario.parallel - len(node.under_way)
        begun = [node.wanted.popleft() for _ in range(min(room, len(node.wanted)))]
        for chunk in begun:
            if self._scenario.way == "central":
                node.under_way[chunk] = None
                self._from_origin(now_s, node, chunk)
            else:
                node.under_way[chunk] = self._acquisition(now_s, node, chunk)
                self._step(now_s, (node, chunk))

    def _acquisition(self, now_s: float, node: SimNode, chunk: int) -> Acquisition:
        """Begin with whom the tracker named ahead, if it did so lately."""
        acquisition = Acquisition(self._names[chunk], self._scenario.acquisition, now_s, node.usual_s)
        told_s, answer = node.ahead.pop(chunk, (0.0, None))
        if answer is not None and now_s - told_s < self._scenario.ahead_s:
            acquisition.answered(answer)
        elif (parent := node.places.take(_LAYER, self._names[chunk])) is not None:
            acquisition.answered(Answer(chunk=self._names[chunk], peers=(parent,)))
        return acquisition

    def _step(self, now_s: float, what: tuple[SimNode, int]) -> None:
        """Do what the acquisition of a chunk says."""
        node, chunk = what
        acquisition = node.under_way.get(chunk)
        if acquisition is None or not node.alive:
            return
        step = acquisition.next(now_s)
        if isinstance(step, LookUp):
            self._ask_tracker(now_s, node, chunk, step.failures)
        elif isinstance(step, Ask):
            self._ask(now_s, node, chunk, step)
        elif isinstance(step, Pause):
            self.calendar.at(now_s + step.wait_s, self._step, what)
        else:
            self._tell(now_s, node, step.failures)
            self.measures.granted += step.granted
            self.measures.given_up += not step.granted
            self._from_origin(now_s, node, chunk)

    def _ask_tracker(self, now_s: float, node: SimNode, chunk: int, failures: tuple[Failure, ...]) -> None:
        """Ask where a chunk is to be had, together with what else the node asks within a moment."""
        if now_s < node.silent_until_s:
            self._answered(now_s, (node, chunk, self._known(node, chunk)))
            return
        node.questions.append((chunk, failures))
        if len(node.questions) == 1 and not node.asks:
            self.calendar.at(now_s + self._scenario.gather_s, self._look_up, node)

    def _look_up(self, now_s: float, node: SimNode) -> None:
        """Send what is to be asked; what comes up until the answer comes waits for it, and travels together."""
        questions, node.questions, node.asks = node.questions, [], True
        ahead = self._ahead(now_s, node) if len(node.ahead) < self._scenario.ahead // 2 else ()
        lookup = _Asked(node, questions, ahead, now_s)
        self._mailbox.send(now_s, self._looked_up, lookup)
        self.calendar.at(now_s + self._scenario.tracker_timeout_s, self._unanswered, lookup)

    def _ahead(self, now_s: float, node: SimNode) -> tuple[int, ...]:
        """Return chunks that are going to be fetched soon, of which it is not known where, nor was just asked."""
        asked, before_s = node.asked_ahead, now_s - self._scenario.ahead_again_s
        soon = islice(node.wanted, self._scenario.ahead)
        chunks = tuple(chunk for chunk in soon if chunk not in node.ahead and asked.get(chunk, before_s) <= before_s)
        asked.update(dict.fromkeys(chunks, now_s))
        return chunks

    def _looked_up(self, now_s: float, asked: _Asked) -> float:
        """The tracker answers. Also those who do not listen any more: it does not know."""
        failures = tuple(failure for _, told in asked.questions for failure in told)
        lookup = Lookup(
            node=asked.node.name,
            layer=_LAYER,
            chunks=tuple(self._names[chunk] for chunk, _ in asked.questions),
            ahead=tuple(self._names[chunk] for chunk in asked.ahead),
            failures=failures,
        )
        reply = self.tracker.look_up(lookup, now_s)
        self._note_verdicts()
        scenario = self._scenario
        thought_s = len(lookup.chunks) * scenario.tracker_chunk_s + len(lookup.ahead) * scenario.tracker_ahead_s
        self.calendar.at(self._mailbox.answered_s(now_s, thought_s), self._replied, (asked, reply))
        return thought_s

    def _replied(self, now_s: float, what: tuple[_Asked, LookupReply]) -> None:
        asked, reply = what
        if asked.over:
            return
        self._end_asking(now_s, asked)
        node = asked.node
        if reply.resend:
            node.announcer.restate()
            self._announce_soon(now_s, node)
        for answer in reply.ahead:
            node.ahead[self._numbers[answer.chunk]] = (now_s, answer)
        for (chunk, _), answer in zip(asked.questions, reply.answers, strict=True):
            self._answered(now_s, (node, chunk, answer))

    def _end_asking(self, now_s: float, asked: _Asked) -> None:
        asked.over = True
        asked.node.asks = False
        if asked.node.questions:
            self.calendar.at(now_s, self._look_up, asked.node)

    def _unanswered(self, now_s: float, asked: _Asked) -> None:
        """Give the tracker up for a while."""
        if asked.over:
            return
        self.measures.unanswered += 1
        node = asked.node
        node.silent_until_s = now_s + self._scenario.tracker_pause_s
        waiting, node.questions = node.questions, []
        self._end_asking(now_s, asked)
        for chunk, _ in [*asked.questions, *waiting]:
            self._answered(now_s, (node, chunk, self._known(node, chunk)))

    def _known(self, node: SimNode, chunk: int) -> Answer | None:
        """Return what a node knows by itself, as live ones do when the tracker is silent: peers that gave it others."""
        known = tuple(Candidate(node=name, address=name) for name in reversed(node.neighbours))
        return Answer(chunk=self._names[chunk], peers=known[:2]) if known else None

    def _answered(self, now_s: float, what: tuple[SimNode, int, Answer | None]) -> None:
        node, chunk, answer = what
        acquisition = node.under_way.get(chunk)
        if acquisition is not None:
            acquisition.answered(answer)
            self._step(now_s, (node, chunk))

    def _from_origin(self, now_s: float, node: SimNode, chunk: int) -> None:
        size_bytes = self._scenario.chunk_bytes
        begin_s = now_s + self._scenario.origin_latency_s
        end_s = max(self._origin.reserve(begin_s, size_bytes), node.down.reserve(begin_s, size_bytes))
        self.measures.origin_bytes += size_bytes
        self._comes(now_s, node, chunk, end_s)
        self.calendar.at(end_s, self._arrived, (node, chunk))

    def _comes(self, now_s: float, node: SimNode, chunk: int, end_s: float) -> None:
        """A chunk begins to come, and is passed on to those who wait for it."""
        node.coming[chunk] = end_s
        for transfer in node.followers.pop(chunk, ()):
            self._queue(now_s, transfer)

    def _arrived(self, now_s: float, what: tuple[SimNode, int]) -> None:
        """A verified chunk is there."""
        node, chunk = what
        if not node.alive:
            return
        del node.under_way[chunk]
        node.places.over(self._names[chunk])
        node.coming.pop(chunk, None)
        node.relays.pop(chunk, None)
        node.have.add(chunk)
        node.received_bytes += self._scenario.chunk_bytes
        self._here += 1
        if self._progress is not None and not self._here % _REPORTED_CHUNKS:
            self._progress(self._here / self._expected)
        if chunk in node.first:
            node.first_left -= 1
            if not node.first_left:
                node.first_s = now_s
                self.measures.became_ready(now_s)
        if not node.wanted and not node.under_way:
            node.all_s = now_s
            self.measures.became_complete(now_s)
            self._finish(now_s)
        if self._scenario.way == "peers":
            node.announcer.gained(_LAYER, (self._names[chunk],))
            self._announce_soon(now_s, node)
            for transfer in node.followers.pop(chunk, ()):
                self._queue(now_s, transfer)
        if self._scenario.pause_s:
            self.calendar.at(now_s + 2.0 * self._scenario.pause_s * self._chance.random(), self._fill, node)
        else:
            self._fill(now_s, node)

    # Peers.

    def _ask(self, now_s: float, node: SimNode, chunk: int, step: Ask) -> None:
        sender, timeout_s = self._by_name[step.peer.node], step.timeout_s
        transfer = Transfer(
            sender, node, chunk, now_s, now_s + step.hold_s, now_s + timeout_s, is_pending=step.peer.pending
        )
        there_s = now_s + self._scenario.round_trip_s / 2
        if not sender.alive:
            limit_s = min(timeout_s, self._scenario.connect_timeout_s)
            self.calendar.at(now_s + limit_s, self._failed, (transfer, FailureKind.UNREACHABLE))
            return
        self.calendar.at(now_s + min(timeout_s, self._scenario.stall_s), self._lose_patience, transfer)
        self.calendar.at(there_s, self._requested, transfer)

    def _requested(self, now_s: float, transfer: Transfer) -> None:
        """A request is at the sender."""
        sender = transfer.sender
        if not sender.alive or transfer.over or sender.nature is Nature.STALLING:
            return
        coming = transfer.is_pending and transfer.chunk in sender.under_way
        if transfer.chunk not in sender.have and not coming:
            self._refuse(now_s, transfer, FailureKind.MISSING)
            return
        held = sender.uploads.hold(transfer.receiver.name)
        if isinstance(held, Refused):
            self._refuse(now_s, transfer, FailureKind.BUSY)
            return
        transfer.upload = held
        if coming and transfer.chunk not in sender.coming:
            sender.followers.setdefault(transfer.chunk, []).append(transfer)
        else:
            self._queue(now_s, transfer)

    def _queue(self, now_s: float, transfer: Transfer) -> None:
        transfer.sender.queue.append(transfer)
        self._serve(now_s, transfer.sender)
        if transfer.upload is not None and transfer.upload.stage is Stage.HELD:
            self.calendar.at(now_s + self._scenario.queue_s, self._end_turn, transfer)

    def _serve(self, now_s: float, sender: SimNode) -> None:
        """Begin to send to those who wait, as far as there are slots, in their order."""
        for transfer in list(sender.queue):
            if sender.uploads.sending >= sender.uploads.policy.slots:
                break
            if transfer.over or transfer.upload is None or transfer.upload.stage is Stage.OVER:
                sender.queue.remove(transfer)
            elif sender.uploads.advance(transfer.upload) is None:
                sender.queue.remove(transfer)
                self._begin(now_s, transfer)

    def _begin(self, now_s: float, transfer: Transfer) -> None:
        """Begin to send a chunk, also while it comes."""
        sender, receiver, chunk = transfer.sender, transfer.receiver, transfer.chunk
        size_bytes = self._scenario.chunk_bytes
        end_s = max(sender.up.reserve(now_s, size_bytes), receiver.down.reserve(now_s, size_bytes))
        if chunk not in sender.have:
            if chunk not in sender.coming:  # It ended early while this waited for its turn.
                self._break(now_s, transfer)
                return
            transfer.is_relayed = True
            sender.relays.setdefault(chunk, []).append(transfer)
            end_s = max(end_s, sender.coming[chunk] + self._scenario.relay_s)
        self.calendar.at(end_s, self._sent, transfer)
        self._comes(now_s, receiver, chunk, end_s)

    def _break(self, now_s: float, transfer: Transfer) -> None:
        """End what is passed on early."""
        if transfer.upload is not None:
            transfer.sender.uploads.end(transfer.upload)
        transfer.is_relayed = True
        self._refuse(now_s, transfer, FailureKind.BROKEN)

    def _refuse(self, now_s: float, transfer: Transfer, kind: FailureKind) -> None:
        self.calendar.at(now_s + self._scenario.round_trip_s / 2, self._failed, (transfer, kind))

    def _sent(self, now_s: float, transfer: Transfer) -> None:
        """The last byte is there."""
        if transfer.upload is not None and transfer.upload.stage is Stage.OVER:
            return  # It ended early.
        sender, receiver, size_bytes = transfer.sender, transfer.receiver, self._scenario.chunk_bytes
        if transfer.upload is not None:
            sender.uploads.end(transfer.upload)
        if not sender.alive:
            return  # Its end never came; the receiver's patience will find out.
        self._serve(now_s, sender)
        sender.sent_bytes += size_bytes
        if transfer.over or not receiver.alive:
            receiver.wasted_bytes += size_bytes
            return
        transfer.over = True
        if sender.nature is Nature.WRONG:
            receiver.wasted_bytes += size_bytes
            self._fault(now_s, transfer, FailureKind.WRONG)
            return
        self.measures.peer_bytes += size_bytes
        receiver.neighbours.pop(sender.name, None)
        receiver.neighbours[sender.name] = None
        if len(receiver.neighbours) > _NEIGHBOURS:
            del receiver.neighbours[next(iter(receiver.neighbours))]
        took_s = now_s - transfer.asked_s
        receiver.usual_s = smoothed(receiver.usual_s or None, took_s)
        giver = Candidate(node=sender.name, address=sender.name, pending=transfer.is_pending)
        receiver.places.came(_LAYER, self._names[transfer.chunk], giver, took_s, receiver.usual_s)
        if receiver.nature is Nature.LYING:
            failure = Failure(peer=sender.name, chunk=self._names[transfer.chunk], kind=FailureKind.WRONG)
            self._tell(now_s, receiver, (failure,))
        acquisition = receiver.under_way.get(transfer.chunk)
        if acquisition is not None:
            self._tell(now_s, receiver, acquisition.untold())
        self._arrived(now_s, (receiver, transfer.chunk))

    def _tell(self, now_s: float, node: SimNode, failures: tuple[Failure, ...]) -> None:
        if failures:
            self._mailbox.send(now_s, self._reported, Report(node=node.name, failures=failures))

    def _reported(self, now_s: float, report: Report) -> float:
        self.tracker.report(report, now_s)
        self._note_verdicts()
        return 0.0

    def _lose_patience(self, now_s: float, transfer: Transfer) -> None:
        """Give a sender up that shows no life; one that is slow, or waits for others, has until the deadline."""
        if transfer.over:
            return
        if not transfer.is_alive or now_s >= transfer.deadline_s:
            self._failed(now_s, (transfer, FailureKind.STALLED))
        elif now_s >= transfer.hold_until_s and transfer.is_held:
            self._failed(now_s, (transfer, FailureKind.BUSY))
        else:
            times_s = (now_s + self._scenario.stall_s, transfer.deadline_s, transfer.hold_until_s)
            self.calendar.at(min(time_s for time_s in times_s if time_s > now_s), self._lose_patience, transfer)

    def _end_turn(self, now_s: float, transfer: Transfer) -> None:
        """Send somebody away whose turn does not come."""
        upload = transfer.upload
        if not transfer.over and upload is not None and upload.stage is Stage.HELD:
            transfer.sender.uploads.end(upload)
            self._refuse(now_s, transfer, FailureKind.BUSY)

    def _failed(self, now_s: float, what: tuple[Transfer, FailureKind]) -> None:
        transfer, kind = what
        if not transfer.over:
            transfer.over = True
            if transfer.upload is not None and transfer.upload.stage is Stage.HELD:
                transfer.sender.uploads.end(transfer.upload)  # The receiver closed the connection.
            if transfer.is_relayed and kind is FailureKind.STALLED:
                kind = FailureKind.BROKEN
            self._fault(now_s, transfer, kind)

    def _end_early(self, now_s: float, node: SimNode, chunk: int) -> None:
        """What came of a chunk is of no use: those to whom it was passed on hear no more of it."""
        node.coming.pop(chunk, None)
        for relay in node.relays.pop(chunk, ()):
            if not relay.over:
                self._break(now_s, relay)

    def _fault(self, now_s: float, transfer: Transfer, kind: FailureKind) -> None:
        self.measures.failures[kind] += 1
        self._end_early(now_s, transfer.receiver, transfer.chunk)
        acquisition = transfer.receiver.under_way.get(transfer.chunk)
        if acquisition is not None:
            acquisition.failed(transfer.sender.name, kind)
            self._step(now_s, (transfer.receiver, transfer.chunk))

    # Announcements.

    def _announce_soon(self, now_s: float, node: SimNode) -> None:
        if not node.announces:
            node.announces = True
            self.calendar.at(now_s + max(node.news_s, self._scenario.announcing.news_s), self._announce, node)

    def _renew(self, now_s: float, node: SimNode) -> None:
        if node.alive:
            if not node.announces:
                self._announce(now_s, node)
            self.calendar.at(now_s + self._scenario.announcing.every_s, self._renew, node)

    def _announce(self, now_s: float, node: SimNode) -> None:
        """Tell the tracker what is new; what comes meanwhile waits for its answer."""
        node.announces = True
        if not node.alive:
            return
        message = node.announcer.make(
            self._held(node),
            upload_bytes_per_s=int(node.up.bytes_per_s),
            upload_slots=self._scenario.uploads.slots,
            uploads=node.uploads.sending,
        )
        self._mailbox.send(now_s, self._announced, (node, message))

    def _announced(self, now_s: float, what: tuple[SimNode, Announcement]) -> float:
        node, message = what
        answer = self.tracker.announce(message, now_s)
        thought_s = sum(len(change.gained) for change in message.changes) * self._scenario.tracker_ahead_s
        self.calendar.at(self._mailbox.answered_s(now_s, thought_s), self._acknowledged, (node, message, answer))
        return thought_s

    def _acknowledged(self, now_s: float, what: tuple[SimNode, Announcement, Acknowledgement]) -> None:
        node, message, answer = what
        node.announcer.acknowledged(message, answer)
        node.announces = False
        node.news_s = answer.news_s
        if self._scenario.places and not self._scenario.ahead:
            node.places.heed(answer.news_s)
        if node.announcer.has_news:
            self._announce_soon(now_s, node)

    def _held(self, node: SimNode) -> Held:
        if len(node.have) == len(self._names):
            return {_LAYER: COMPLETE}
        return {_LAYER: {self._names[chunk] for chunk in node.have}} if node.have else {}

    def _note_verdicts(self) -> None:
        for verdict in self.tracker.take_verdicts():
            self.measures.verdicts[verdict.kind] += 1
