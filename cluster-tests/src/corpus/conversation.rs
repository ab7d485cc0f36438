//! One conversation with a broker, line by line.

use super::pattern::{self, Names};
use super::show;
use super::step::{self, Expectation, Step, Wanted};
use crate::connection::{Connection, Fault, TIMEOUT};
use crate::wire::{self, Packet, Properties};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long SILENCE listens before its PINGREQ.
const LISTEN: Duration = Duration::from_millis(100);

/// How long one of several connections is listened to at a time.
const TURN: Duration = Duration::from_millis(20);

/// A line that was not kept.
#[derive(Debug, Clone)]
pub struct Mismatch {
    /// Counted from 1.
    pub line: usize,
    pub expected: String,
    pub came: String,
}

/// What came on a connection instead of what was expected.
enum Actual {
    Frame(u8, Vec<u8>),
    Closed,
    Nothing,
    /// No packet of the protocol, or a broken conversation.
    Wrong(String),
}

impl From<Fault> for Actual {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Timeout => Self::Nothing,
            Fault::Closed => Self::Closed,
            Fault::Wrong(why) => Self::Wrong(why),
        }
    }
}

/// Holds a conversation with these nodes, and their hub, and returns its text. With `rewrite`, an expectation that is
/// not met is replaced by what came, and the conversation goes on.
pub fn hold(
    text: &str,
    word: &str,
    nodes: &[SocketAddr],
    hub: Option<SocketAddr>,
    rewrite: bool,
) -> Result<String, Mismatch> {
    let mut conversation = Conversation {
        nodes,
        hub,
        word,
        node: 0,
        level: wire::V5,
        open: BTreeMap::new(),
        names: Names::new(),
    };
    let mut lines = text.lines().enumerate().peekable();
    let mut written = String::new();
    while let Some((index, line)) = lines.next() {
        let broken = |expected: &str, came: String| Mismatch {
            line: index + 1,
            expected: expected.trim().to_owned(),
            came,
        };
        let parse = |line| step::parse(line, word);
        match parse(line).map_err(|why| broken(line, why))? {
            Some(Step::Expect(first)) => {
                let mut run = vec![(line, first)];
                // Neighbours that may come in any order are taken together.
                while run[0].1.unordered
                    && let Some((_, next)) = lines.peek()
                    && let Ok(Some(Step::Expect(expect))) = parse(next)
                    && expect.unordered
                    && expect.on == run[0].1.on
                {
                    run.push((next, expect));
                    lines.next();
                }
                let kept = conversation.expect(run, rewrite);
                written += &kept.map_err(|(line, came)| broken(line, came))?;
            }
            other => {
                let done = other.map_or(Ok(()), |step| conversation.step(step));
                done.map_err(|why| broken(line, why))?;
                written += line;
                written.push('\n');
            }
        }
    }
    Ok(written)
}

struct Conversation<'a> {
    nodes: &'a [SocketAddr],
    /// Where back ends ask.
    hub: Option<SocketAddr>,
    word: &'a str,
    node: usize,
    level: u8,
    open: BTreeMap<String, Connection>,
    names: Names,
}

impl Conversation<'_> {
    fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Level(level) => self.level = level,
            Step::Node(node) => self.node = node,
            Step::Pause(pause) => std::thread::sleep(pause),
            Step::Close(name) => {
                if let Some(connection) = self.open.remove(&name) {
                    connection.hang_up();
                }
            }
            Step::Send(name, patterns) => {
                let bytes = pattern::bytes(&patterns, &self.names)?;
                // A broker may close before it has read everything.
                let _ = self.connection(&name)?.try_send(&bytes);
            }
            Step::Differ(names) => {
                let values: Vec<_> = names.iter().map(|name| self.names.get(name)).collect();
                for (index, value) in values.iter().enumerate() {
                    if value.is_none() || values[..index].contains(value) {
                        return Err(format!("{values:02x?}"));
                    }
                }
            }
            Step::Ask(ask) => ask.carry_out(self.hub.ok_or("there is no hub")?)?,
            Step::Expect(_) => unreachable!("expectations are taken in runs"),
        }
        Ok(())
    }

    fn connection(&mut self, name: &str) -> Result<&mut Connection, String> {
        if !self.open.contains_key(name) {
            let address = self.nodes[self.node % self.nodes.len()];
            let opened = Connection::open(address, self.level);
            let opened = opened.map_err(|error| format!("no connection to {address}: {error}"))?;
            self.open.insert(name.to_owned(), opened);
        }
        Ok(self.open.get_mut(name).expect("it is there now"))
    }

    /// Sees a run of expectations met, in any order when there are several. Returns their lines, or what they become.
    fn expect<'l>(
        &mut self,
        mut run: Vec<(&'l str, Expectation)>,
        rewrite: bool,
    ) -> Result<String, (&'l str, String)> {
        let as_it_was: Vec<&str> = run.iter().map(|(line, _)| *line).collect();
        let mut replaced = false;
        let mut written = String::new();
        while let Some((line, first)) = run.first() {
            let (line, on) = (*line, first.on.join("|"));
            match self.meet(&mut run) {
                Ok(met) => {
                    written += met;
                    written.push('\n');
                }
                Err(Actual::Wrong(why)) => return Err((line, why)),
                Err(came) if rewrite => {
                    replaced = true;
                    let mark = if run[0].1.unordered { "<~" } else { "<" };
                    let names = &mut self.names;
                    let shown = show(&came, &self.open, &on, self.word, names);
                    written += format!("{on} {mark} {shown}").trim_start();
                    written.push('\n');
                    // What waits for the end or for silence goes on waiting; a packet stands for the one expected.
                    if !(matches!(came, Actual::Frame(..)) && run[0].1.wanted.is_quiet()) {
                        run.remove(0);
                    }
                }
                Err(came) => {
                    let names = &mut self.names.clone();
                    let shown = show(&came, &self.open, &on, self.word, names);
                    return Err((line, shown));
                }
            }
        }
        // Lines that were met in another order keep theirs.
        Ok(if replaced {
            written
        } else {
            as_it_was.join("\n") + "\n"
        })
    }

    /// Takes what comes next and the expectation that it meets, whose line is returned.
    fn meet<'l>(&mut self, run: &mut Vec<(&'l str, Expectation)>) -> Result<&'l str, Actual> {
        if run[0].1.wanted.is_quiet() {
            self.quiet(&run[0].1)?;
            return Ok(run.remove(0).0);
        }
        let (level, header, body) = self.next(&run[0].1)?;
        for (index, (_, expect)) in run.iter().enumerate() {
            let mut names = self.names.clone();
            if expect.wanted.accepts(level, header, &body, &mut names) {
                self.names = names;
                return Ok(run.remove(index).0);
            }
        }
        Err(Actual::Frame(header, body))
    }

    /// The next packet on one of the connections, behind that connection's level.
    fn next(&mut self, expect: &Expectation) -> Result<(u8, u8, Vec<u8>), Actual> {
        let timeout = expect.within.unwrap_or(TIMEOUT);
        let deadline = Instant::now() + timeout;
        loop {
            for name in &expect.on {
                let turn = match expect.on.len() {
                    1 => timeout,
                    _ => TURN,
                };
                let connection = self.connection(name).map_err(Actual::Wrong)?;
                match connection.receive_frame(turn) {
                    Err(Fault::Timeout) => {}
                    other => {
                        let (header, body) = other?;
                        return Ok((connection.level(), header, body));
                    }
                }
            }
            if Instant::now() >= deadline {
                return Err(Actual::Nothing);
            }
        }
    }

    /// Nothing comes, or only what announces the end.
    fn quiet(&mut self, expect: &Expectation) -> Result<(), Actual> {
        let timeout = expect.within.unwrap_or(TIMEOUT);
        let connection = self.connection(&expect.on[0]).map_err(Actual::Wrong)?;
        match &expect.wanted {
            Wanted::Closed => ended(connection, timeout, &[]),
            Wanted::End(codes) => ended(connection, timeout, codes),
            Wanted::Refused(codes) => match connection.read_to_end(timeout)?.as_slice() {
                [] => Ok(()),
                [0x20, _, 0, code, ..] if codes.contains(code) => Ok(()),
                other => Err(Actual::Wrong(format!("{other:02x?}"))),
            },
            Wanted::Open(time) => still(connection, *time),
            _ => {
                still(connection, LISTEN)?;
                connection.try_send(&wire::PINGREQ)?;
                match connection.receive_frame(timeout)? {
                    (0xD0, _) => Ok(()),
                    (header, body) => Err(Actual::Frame(header, body)),
                }
            }
        }
    }
}

fn still(connection: &mut Connection, time: Duration) -> Result<(), Actual> {
    match connection.receive_frame(time) {
        Err(Fault::Timeout) => Ok(()),
        Err(fault) => Err(fault.into()),
        Ok((header, body)) => Err(Actual::Frame(header, body)),
    }
}

/// Closed; before that at most one refusing CONNACK or DISCONNECT with one of these codes.
fn ended(connection: &mut Connection, timeout: Duration, codes: &[u8]) -> Result<(), Actual> {
    let level = connection.level();
    match connection.receive_frame(timeout) {
        Err(Fault::Closed) => return Ok(()),
        Err(fault) => return Err(fault.into()),
        Ok((header, body)) => {
            let code = match wire::decode_packet(level, header, &body) {
                Ok(Packet::Disconnect(disconnect)) => disconnect.code,
                Ok(Packet::Connack(connack)) => connack.code,
                _ => 0,
            };
            if code == 0 || !codes.contains(&code) {
                return Err(Actual::Frame(header, body));
            }
        }
    }
    match connection.receive_frame(timeout) {
        Err(Fault::Closed) => Ok(()),
        Err(fault) => Err(fault.into()),
        Ok((header, body)) => Err(Actual::Frame(header, body)),
    }
}

fn show(
    came: &Actual,
    open: &BTreeMap<String, Connection>,
    on: &str,
    word: &str,
    names: &mut Names,
) -> String {
    match came {
        Actual::Frame(header, body) => {
            let level = open.get(on).map_or(wire::V5, Connection::level);
            show::packet(level, *header, body, word, names)
        }
        Actual::Closed => "CLOSE".into(),
        Actual::Nothing => "SILENCE".into(),
        Actual::Wrong(why) => why.clone(),
    }
}

impl Wanted {
    /// Whether it is about no packet coming.
    fn is_quiet(&self) -> bool {
        use Wanted::{Closed, End, Open, Refused, Silence};
        matches!(self, Closed | End(_) | Refused(_) | Silence | Open(_))
    }

    fn accepts(&self, level: u8, header: u8, body: &[u8], names: &mut Names) -> bool {
        let decoded = wire::decode_packet(level, header, body);
        match (self, decoded) {
            (Self::First(headers), _) => headers.contains(&header),
            (Self::Exactly(patterns), _) => {
                pattern::matches(patterns, &wire::packet(header, body), names)
            }
            (Self::Event(event), Ok(Packet::Publish(came))) => event.is(&came),
            (Self::Disconnect { codes, without }, Ok(Packet::Disconnect(came))) => {
                codes.contains(&came.code) && lacks(&came.properties, without)
            }
            (
                Self::Accepted {
                    present,
                    with,
                    without,
                },
                Ok(Packet::Connack(connack)),
            ) => {
                let list = &connack.properties;
                let bytes: Vec<Vec<u8>> = list.0.iter().map(single).collect();
                let bytes: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
                connack.code == 0
                    && connack.session_present == *present
                    && lacks(list, without)
                    && pattern::holds_all(with, &bytes, names)
            }
            (
                Self::Ack {
                    header: wanted,
                    id,
                    codes,
                    without,
                },
                Ok(
                    Packet::Puback(ack)
                    | Packet::Pubrec(ack)
                    | Packet::Pubrel(ack)
                    | Packet::Pubcomp(ack),
                ),
            ) => {
                *wanted == header
                    && codes.contains(&ack.code)
                    && lacks(&ack.properties, without)
                    && pattern::matches(
                        std::slice::from_ref(id),
                        &ack.packet_id.to_be_bytes(),
                        names,
                    )
            }
            _ => false,
        }
    }
}

fn lacks(list: &Properties, without: &[u8]) -> bool {
    !without.iter().any(|id| list.has(*id))
}

/// A property's bytes.
fn single((id, value): &(u8, wire::Value)) -> Vec<u8> {
    let list = wire::properties(&Properties::new().with(*id, value.clone()));
    // Its length takes one byte up to 127, two above.
    let start = if list[0] & 0x80 == 0 { 1 } else { 2 };
    list[start..].to_vec()
}
