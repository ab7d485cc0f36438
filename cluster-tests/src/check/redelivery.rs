//! Rules on the packets of one subscriber, over all its connections: D6 (receive maximum) and D7 (packet ids, DUP).

use crate::record::Label;
use crate::record::{Arrival, Event, SubscriberRecord};
use std::collections::{BTreeMap, BTreeSet};

/// How far the flow of a packet id is, as its receiver knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// PUBLISH received, nothing sent.
    Published,
    /// PUBACK sent. On another connection it may not have arrived.
    Acknowledged,
    /// PUBREC sent.
    Received,
    /// PUBREL received: the broker has seen the PUBREC.
    Released,
    /// PUBCOMP sent. On another connection it may not have arrived.
    Completed,
}

impl Stage {
    fn is_over(self) -> bool {
        matches!(self, Self::Acknowledged | Self::Completed)
    }
}

#[derive(Debug, Clone, Copy)]
struct Flow {
    label: Option<Label>,
    qos: u8,
    stage: Stage,
    /// Its latest packet came on the present connection.
    here: bool,
}

/// Every violation, one line each.
pub fn violations(subscriber: &SubscriberRecord) -> Vec<String> {
    let mut replay = Replay {
        subscriber,
        flows: BTreeMap::new(),
        unfinished: BTreeSet::new(),
        connections: 0,
        at: 0,
        found: Vec::new(),
    };
    for (at, event) in &subscriber.events {
        replay.at = *at;
        replay.event(event);
    }
    replay.end();
    replay.found
}

struct Replay<'a> {
    subscriber: &'a SubscriberRecord,
    flows: BTreeMap<u16, Flow>,
    /// Ids of PUBLISHes of this connection whose flow is not over.
    unfinished: BTreeSet<u16>,
    connections: usize,
    at: u64,
    found: Vec<String>,
}

impl Replay<'_> {
    fn event(&mut self, event: &Event) {
        match event {
            Event::Connected { present } => {
                self.connections += 1;
                self.unfinished.clear();
                if !present {
                    self.flows.clear();
                }
                for flow in self.flows.values_mut() {
                    flow.here = false;
                }
            }
            Event::Publish(arrival) if arrival.qos > 0 => self.publish(arrival),
            Event::Pubrel { packet_id } => self.pubrel(*packet_id),
            Event::SentPuback { packet_id } => self.step(*packet_id, Stage::Acknowledged),
            Event::SentPubrec { packet_id } => self.step(*packet_id, Stage::Received),
            Event::SentPubcomp { packet_id } => self.step(*packet_id, Stage::Completed),
            Event::Publish(_) | Event::Cut | Event::ProtocolError(_) => {}
        }
    }

    fn wrong(&mut self, rule: &str, packet_id: u16, why: &str) {
        let name = &self.subscriber.shape.client_id;
        let flow = match self.flows.get(&packet_id) {
            Some(flow) => format!("{flow:?}"),
            None => "not in use".into(),
        };
        self.found.push(format!(
            "{rule}: {name} at {} ms, connection {}, packet id {packet_id}: {why}; before: {flow}",
            self.at, self.connections
        ));
    }

    /// A QoS 1 message that a group member had not acknowledged when it was cut off may go to another member.
    fn may_be_taken_back(&self, flow: &Flow) -> bool {
        self.subscriber.shape.group.is_some() && flow.qos == 1
    }

    fn publish(&mut self, arrival: &Arrival) {
        let id = arrival.packet_id;
        let name = arrival
            .label
            .map_or_else(|| "an unknown message".into(), |label| label.to_string());
        match self.flows.get(&id).copied() {
            None => {
                if arrival.duplicate && self.connections < 2 {
                    let why = format!("{name} has DUP 1 on the first connection");
                    self.wrong("D7", id, &why);
                }
            }
            Some(flow) if flow.here => {
                if !flow.stage.is_over() {
                    self.wrong("D7", id, &format!("{name} under an id in use"));
                }
            }
            Some(flow) => self.publish_again(arrival, &name, flow),
        }
        self.look_for_another_id(arrival, &name);
        self.flows.insert(
            id,
            Flow {
                label: arrival.label,
                qos: arrival.qos,
                stage: Stage::Published,
                here: true,
            },
        );
        self.unfinished.insert(id);
        let (open, most) = (self.unfinished.len(), self.subscriber.shape.window());
        if open > most {
            self.wrong(
                "D6",
                id,
                &format!("{open} messages unacknowledged, {most} allowed [MQTT-3.3.4-9]"),
            );
        }
    }

    /// A PUBLISH under an id that was used on an earlier connection.
    fn publish_again(&mut self, arrival: &Arrival, name: &str, flow: Flow) {
        let id = arrival.packet_id;
        let is_same = flow.label == arrival.label;
        let why = match flow.stage {
            Stage::Published | Stage::Received if !is_same => {
                if self.may_be_taken_back(&flow) {
                    return;
                }
                "under the id of a message that is not acknowledged"
            }
            Stage::Published | Stage::Received | Stage::Acknowledged
                if is_same && !arrival.duplicate =>
            {
                "again, without DUP [MQTT-3.3.1-1]"
            }
            Stage::Released => "after its PUBREL [MQTT-4.3.3-6]",
            Stage::Completed if is_same => "after its PUBCOMP",
            _ => return,
        };
        self.wrong("D7", id, &format!("{name} {why}"));
    }

    /// A QoS 2 message comes again under its own id only [MQTT-4.4.0-1]. Of a QoS 1 message there can be two, when its
    /// publisher sent it twice.
    fn look_for_another_id(&mut self, arrival: &Arrival, name: &str) {
        if arrival.qos < 2 || arrival.label.is_none() {
            return;
        }
        let other = self.flows.iter().find(|(id, flow)| {
            **id != arrival.packet_id && flow.label == arrival.label && !flow.stage.is_over()
        });
        if let Some((id, _)) = other {
            let id = *id;
            let why = format!("{name} comes again, as packet id {}", arrival.packet_id);
            self.wrong("D7", id, &why);
        }
    }

    fn pubrel(&mut self, id: u16) {
        let why = match self.flows.get(&id) {
            None => Some("PUBREL of an id that is not in use"),
            Some(flow) => match (flow.stage, flow.here) {
                (Stage::Received, _) | (Stage::Released | Stage::Completed, false) => None,
                (Stage::Released | Stage::Completed, true) => Some("PUBREL twice on a connection"),
                (Stage::Published | Stage::Acknowledged, _) => Some("PUBREL without a PUBREC"),
            },
        };
        if let Some(why) = why {
            self.wrong("D7", id, why);
        }
        if let Some(flow) = self.flows.get_mut(&id) {
            flow.stage = Stage::Released;
            flow.here = true;
        }
    }

    fn step(&mut self, id: u16, stage: Stage) {
        if let Some(flow) = self.flows.get_mut(&id) {
            flow.stage = stage;
        }
        if stage.is_over() {
            self.unfinished.remove(&id);
        }
    }

    /// When everything has arrived, every flow is over: what was open when a connection ended was sent again.
    fn end(&mut self) {
        let open: Vec<u16> = self
            .flows
            .iter()
            .filter(|(_, flow)| !flow.stage.is_over())
            .filter(|(_, flow)| flow.here || !self.may_be_taken_back(flow))
            .map(|(id, _)| *id)
            .collect();
        for id in open {
            self.wrong("D7", id, "its flow never ended [MQTT-4.4.0-1]");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::SubscriberShape;

    fn label(qos: u8, sequence: u32) -> Label {
        Label {
            publisher: 0,
            topic: 0,
            qos,
            sequence,
        }
    }

    /// Message `sequence` of that QoS under that id.
    fn publish(qos: u8, sequence: u32, packet_id: u16, duplicate: bool) -> Event {
        Event::Publish(Arrival {
            packet_id,
            duplicate,
            qos,
            retain: false,
            topic: "t0".into(),
            label: Some(label(qos, sequence)),
            identifiers: Vec::new(),
        })
    }

    const FIRST: Event = Event::Connected { present: false };
    const RESUMED: Event = Event::Connected { present: true };

    fn puback(packet_id: u16) -> Event {
        Event::SentPuback { packet_id }
    }
    fn pubrec(packet_id: u16) -> Event {
        Event::SentPubrec { packet_id }
    }
    fn pubrel(packet_id: u16) -> Event {
        Event::Pubrel { packet_id }
    }
    fn pubcomp(packet_id: u16) -> Event {
        Event::SentPubcomp { packet_id }
    }

    fn judge_as(shape: SubscriberShape, events: &[Event]) -> Vec<String> {
        violations(&SubscriberRecord {
            shape,
            identifier: None,
            first_uncertain: false,
            events: events.iter().map(|event| (0, event.clone())).collect(),
        })
    }

    /// The rules that are broken, one for each violation.
    fn judge(events: &[Event]) -> Vec<String> {
        judge_as(SubscriberShape::new("s"), events)
            .iter()
            .map(|line| line[..2].to_owned())
            .collect()
    }

    fn assert_good(events: &[Event]) {
        assert_eq!(judge(events), Vec::<String>::new(), "{events:#?}");
    }

    #[test]
    fn whole_flows_are_good_and_free_their_ids() {
        assert_good(&[
            FIRST,
            publish(1, 0, 1, false),
            puback(1),
            publish(2, 0, 1, false),
            pubrec(1),
            pubrel(1),
            pubcomp(1),
            publish(1, 1, 1, false),
            puback(1),
        ]);
    }

    #[test]
    fn what_may_be_repeated_after_a_reconnect_is_good() {
        // Whatever was sent last may have been lost.
        let first = [FIRST, publish(2, 0, 1, false)];
        let rest = [pubrec(1), pubrel(1), pubcomp(1)];
        for sent in 0..=3 {
            let before: Vec<Event> = [&first[..], &rest[..sent], &[Event::Cut, RESUMED]].concat();
            let from_publish = [&before[..], &[publish(2, 0, 1, true)], &rest[..]].concat();
            let from_pubrel = [&before[..], &rest[1..]].concat();
            let not_at_all = [&before[..], &[publish(2, 1, 1, false)], &rest[..]].concat();
            assert_eq!(
                judge(&from_publish).is_empty(),
                sent <= 1,
                "PUBLISH after {sent}"
            );
            assert_eq!(
                judge(&from_pubrel).is_empty(),
                sent >= 1,
                "PUBREL after {sent}"
            );
            assert_eq!(judge(&not_at_all).is_empty(), sent == 3, "new after {sent}");
        }
        let unacknowledged = [FIRST, publish(1, 0, 1, false), Event::Cut, RESUMED];
        let sent = [
            FIRST,
            publish(1, 0, 1, false),
            puback(1),
            Event::Cut,
            RESUMED,
        ];
        for (before, reusable) in [(&unacknowledged[..], false), (&sent[..], true)] {
            assert_good(&[before, &[publish(1, 0, 1, true), puback(1)]].concat());
            let other = [before, &[publish(1, 1, 1, false), puback(1)]].concat();
            assert_eq!(judge(&other).is_empty(), reusable);
        }
        // Sent and never read on the first connection.
        assert_good(&[
            FIRST,
            Event::Cut,
            RESUMED,
            publish(1, 0, 1, true),
            puback(1),
        ]);
    }

    #[test]
    fn ids_in_use_twice_are_found() {
        for stage in 0..3 {
            let flow = [publish(2, 0, 1, false), pubrec(1), pubrel(1)];
            for other in [publish(2, 1, 1, false), publish(2, 0, 1, true)] {
                let events = [
                    &[FIRST],
                    &flow[..=stage],
                    &[other, pubrec(1), pubrel(1), pubcomp(1)],
                ];
                assert_eq!(judge(&events.concat()), ["D7"], "stage {stage}");
            }
        }
        let again = [
            FIRST,
            publish(1, 0, 1, false),
            publish(1, 0, 1, true),
            puback(1),
        ];
        assert_eq!(judge(&again), ["D7"]);
    }

    #[test]
    fn a_missing_dup_is_found_and_an_early_one() {
        for qos in [1, 2] {
            let answers = if qos == 1 {
                vec![puback(1)]
            } else {
                vec![pubrec(1), pubrel(1), pubcomp(1)]
            };
            let before = vec![FIRST, publish(qos, 0, 1, false), Event::Cut, RESUMED];
            let without = [before, vec![publish(qos, 0, 1, false)], answers.clone()].concat();
            assert_eq!(judge(&without), ["D7"], "QoS {qos}");
            let early = [vec![FIRST, publish(qos, 0, 1, true)], answers].concat();
            assert_eq!(judge(&early), ["D7"], "QoS {qos}");
        }
    }

    #[test]
    fn another_id_is_found() {
        let events = [
            FIRST,
            publish(2, 0, 1, false),
            Event::Cut,
            RESUMED,
            publish(2, 0, 2, true),
            pubrec(2),
            pubrel(2),
            pubcomp(2),
        ];
        // Under another id, and never under its own.
        assert_eq!(judge(&events), ["D7", "D7"]);
    }

    #[test]
    fn what_is_never_sent_again_is_found() {
        let unacknowledged = [FIRST, publish(1, 0, 1, false), Event::Cut, RESUMED];
        assert_eq!(judge(&unacknowledged), ["D7"]);
        let received = [
            FIRST,
            publish(2, 0, 1, false),
            pubrec(1),
            Event::Cut,
            RESUMED,
        ];
        assert_eq!(judge(&received), ["D7"]);
        let mut member = SubscriberShape::new("m");
        member.group = Some("g".into());
        assert!(
            judge_as(member.clone(), &unacknowledged).is_empty(),
            "another member may have got it"
        );
        assert_eq!(
            judge_as(member, &received).len(),
            1,
            "QoS 2 stays with its member"
        );
    }

    #[test]
    fn pubrels_out_of_place_are_found() {
        assert_eq!(judge(&[FIRST, pubrel(1), pubcomp(1)]), ["D7"]);
        let early = [FIRST, publish(2, 0, 1, false), pubrel(1), pubcomp(1)];
        assert_eq!(judge(&early), ["D7"]);
        let twice = [
            FIRST,
            publish(2, 0, 1, false),
            pubrec(1),
            pubrel(1),
            pubrel(1),
            pubcomp(1),
        ];
        assert_eq!(judge(&twice), ["D7"]);
    }

    #[test]
    fn more_than_the_receive_maximum_is_found() {
        let mut narrow = SubscriberShape::new("n");
        narrow.receive_maximum = 2;
        let answers = [puback(1), puback(2), puback(3)];
        let three: Vec<Event> = (1..=3)
            .map(|id| publish(1, u32::from(id), id, false))
            .collect();
        let all = [&[FIRST], &three[..], &answers[..]].concat();
        assert_eq!(judge_as(narrow.clone(), &all).len(), 1);
        assert_good(&all);
        // It holds for what is sent again, too.
        let again: Vec<Event> = (1..=3)
            .map(|id| publish(1, u32::from(id), id, true))
            .collect();
        let resumed = [&[FIRST, Event::Cut, RESUMED], &again[..], &answers[..]].concat();
        assert_eq!(judge_as(narrow.clone(), &resumed).len(), 1);
        let mut answered = all.clone();
        answered.swap(3, 4);
        assert!(
            judge_as(narrow.clone(), &answered).is_empty(),
            "{answered:?}"
        );
        // PUBREC does not make room, PUBCOMP does.
        let exact = |answer: Vec<Event>| {
            let mut events = vec![FIRST, publish(2, 0, 1, false), publish(2, 1, 2, false)];
            events.extend(answer);
            events.push(publish(2, 2, 3, false));
            judge_as(narrow.clone(), &events)
                .iter()
                .filter(|line| line.starts_with("D6"))
                .count()
        };
        assert_eq!(exact(vec![pubrec(1)]), 1);
        assert_eq!(exact(vec![pubrec(1), pubrel(1)]), 1);
        assert_eq!(exact(vec![pubrec(1), pubrel(1), pubcomp(1)]), 0);
    }
}
