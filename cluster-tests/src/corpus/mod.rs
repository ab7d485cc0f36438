//! Conversations as text: what the client sends, byte by byte, and what must come back. One file, one rule.
//!
//! The first line of a file is a comment: the statements of the standard that it shows (`[MQTT-4.4.0-1]`; one of MQTT
//! 3.1.1 has `3.1.1` in front: `3.1.1 [MQTT-4.4.0-1]`) and what they come to. `docs/conformance.md` lists them.
//!
//! ```text
//! level 5                      the protocol level of connections opened from here on: 3, 4 or 5
//! node 1                       and their node: the second one (of a single one: that)
//! close                        close the connection without DISCONNECT; the next line opens another one
//! pause 1200                   let that many milliseconds pass
//! alone                        nothing else is said to the broker meanwhile: for filters like `#`
//! unlike quorumq why           that broker is known to answer otherwise
//! hub PUT /devices/@ if-match=* {"deviceId":"@"} -> 409 DeviceAlreadyExists {"Message":"…"}
//!                              a back end asks the hub, and is answered with this status; fields of its header, a body,
//!                              the name of an error, and members that the answer has among others, may be left out
//!
//! > connect v5 clean @         packets that only set the scene have names; see below
//! < connack new                an accepting CONNACK of any version with session present 0; present: with 1
//! < connack new ( 13 003C ) WITHOUT 1A 1C   ... that has, among others, these properties, and has not those
//! > 10 [ s"MQTT" 05 02 0000 00 s"@" ]   bytes
//! < 20|90 *                    a packet whose first byte is one of these
//! < 90 [ 0001 00 02 ]          a packet with exactly these bytes
//! < PUBACK 0001                whichever its form, with a code of success; also PUBREC, PUBREL, PUBCOMP
//! < PUBACK 0001 87 97          ... with one of these codes
//! < PUBACK 0001 87 WITHOUT 1F 26   ... and none of these properties; E0 may say so too
//! < E0 81 82                   a DISCONNECT (MQTT 5) with one of these reasons
//! < EVENT @a connected 1       a PUBLISH with the event that session @a got its first connection
//! < EVENT @a disconnected 1 ConnectionLost   ... that it has ended, and why; no byte is left open but of id and time
//! < END 81 82                  closed, at most one refusing CONNACK or DISCONNECT with one of these codes before
//! < REFUSED 84 01              the same, and the CONNACK may be of any version
//! < CLOSE                      closed without another packet
//! < CLOSE WITHIN 3000          ... after that many milliseconds at most; any expectation may say so
//! < SILENCE                    nothing waits: nothing comes for a moment, then a PINGREQ is answered at once
//! < OPEN 1300                  nothing comes for so long and the connection stays open; no PINGREQ
//! <~ 40 *                      neighbouring lines with <~ are met in any order
//! differ $1 $2                 these are different
//! ```
//!
//! A word in front of `>`, `<`, `close` names one of several connections; `a|b <` comes on one of the two.
//!
//! # Packets by name
//!
//! The packets that a rule is about are written as bytes. Those that lead to it, or clear up after it, have names, in
//! what is sent and in what comes; each name stands for exactly one sequence of bytes, `connack` without a version
//! excepted. The version is `v31`, `v311` or `v5`.
//!
//! ```text
//! connect v5 clean @b                    clean start 1, client id @b, no keep-alive, nothing else
//! connect v5 @b SessionExpiry=120        clean start 0, and a property; "" is the empty client id
//! connect v311 clean @ keep-alive=2
//! connect v311 @ hub                     a device, or with @/m a module, with the token of a policy
//! connack any                            a CONNACK, whatever it says
//! connack v311 new                       exactly these bytes: accepted, session present 0, no properties
//! connack v311 present                   ... 1
//! subscribe v5 id=1 @/t qos=1            a filter and the options behind it, as often as needed: qos=0..2, no-local,
//!                                        retain-as-published, retain-handling=0..2
//! subscribe v5 id=1 SubscriptionIdentifier=7 @/a qos=0 @/b qos=2
//! suback v5 id=1 qos=0 qos=2             granted
//! disconnect                             the shortest form, of any version
//! disconnect v5 SessionExpiry=0
//! ```
//!
//! Properties have the standard's names without "Interval" and spaces, and come in the order in which they are written:
//! `SessionExpiry`, `ReceiveMaximum`, `MaximumPacketSize`, `TopicAliasMaximum`, `SubscriptionIdentifier` are decimal
//! numbers, `AuthenticationMethod` and `AuthenticationData` are texts in quotes. In names, too, `@` is the
//! conversation's word.
//!
//! # Bytes
//!
//! Bytes are hexadecimal; `"text"` is its bytes, as is `'text'`, `s"text"` has two bytes of length in front, `[ … ]`
//! has its remaining length in front, `( … )` its length as properties do, and `00*70000` repeats a byte. `@` in quotes
//! is a word of eight letters that no other conversation has: client ids and topics begin with it.
//!
//! In what comes, `$name` is a packet id, `$name*24` so many bytes and `s$name` a string that the broker chooses: the
//! first use of a name takes what came, later ones stand for it. `00|10` is one of these bytes, `00000008-0000000A` a
//! number between these, `..*3` three bytes of any value. Properties with commas between them come in any order:
//! `( 01 01 , 08 s"a" )`.
//!
//! `QUORUMQ_REWRITE=1` writes what came into the files in place of what did not come.

mod conversation;
mod event;
mod file;
mod hub;
mod pattern;
mod run;
mod setup;
mod show;
mod step;

pub use conversation::Mismatch;
pub use file::{
    APART, EVENTS, File, HUB, LIMITS, LOG_IN, LOW_LIMITS, SHORT_QUEUES, USERS, directory, files,
};
pub use hub::{HUB_HOST, HUB_POLICIES};
pub use run::{Report, Verdict, hold_all, hold_with_hub};

#[cfg(test)]
mod tests {
    use super::*;
    use step::Step;

    #[test]
    fn every_file_is_well_formed() {
        let mut wrong = Vec::new();
        for file in files(&[]) {
            if !file.text.starts_with("# ") {
                wrong.push(format!("{}: begins with the rule it shows", file.name));
            }
            let mut expects = false;
            for (number, line) in file.text.lines().enumerate() {
                match step::parse(line, "12345678") {
                    Ok(step) => expects |= matches!(step, Some(Step::Expect(_) | Step::Ask(_))),
                    Err(why) => wrong.push(format!("{}:{}: {why}", file.name, number + 1)),
                }
            }
            if !expects {
                wrong.push(format!("{}: expects nothing", file.name));
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
