//! The header of the PROXY protocol, versions 1 and 2: a load balancer tells where a connection comes from.
//!
//! It is sans-io: [`progress`] says how many bytes to read next, and never asks for a byte behind the header, so that
//! nothing has to be given back to the connection.
//!
//! Invariant: a header is at most [`LARGEST_HEADER_BYTES`] long. What version 2 appends (TLVs) is passed over: nothing
//! in it is proved.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The first bytes of version 2.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// The first bytes of version 1.
const NAME: &[u8; 6] = b"PROXY ";

/// Longest line of version 1, its end included.
const LONGEST_LINE: usize = 107;

/// Bytes of version 2 before the addresses.
const FIXED_BYTES: usize = 16;

/// Largest header: addresses, and more TLVs than load balancers send.
pub(super) const LARGEST_HEADER_BYTES: usize = 4 << 10;

/// How far a header has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// So many further bytes belong to it in any case.
    Needs(usize),
    /// It is whole. The source is `None` for connections of the load balancer itself, and where it does not know.
    Whole(Option<SocketAddr>),
}

/// Bytes that are no header of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ProxyError(&'static str);

/// Reads what has arrived of a header.
///
/// # Errors
/// It is none, or longer than it may be.
pub(super) fn progress(bytes: &[u8]) -> Result<Progress, ProxyError> {
    let known = bytes.len().min(SIGNATURE.len());
    if bytes[..known] == SIGNATURE[..known] {
        return binary(bytes);
    }
    let known = bytes.len().min(NAME.len());
    if bytes[..known] == NAME[..known] {
        return text(bytes);
    }
    Err(ProxyError("the connection begins without a PROXY header"))
}

/// Version 1: one line of text.
fn text(bytes: &[u8]) -> Result<Progress, ProxyError> {
    /// `PROXY UNKNOWN\r\n` is the shortest line.
    const SHORTEST_LINE: usize = 15;
    if bytes.len() < SHORTEST_LINE {
        return Ok(Progress::Needs(SHORTEST_LINE - bytes.len()));
    }
    let Some(line) = bytes.strip_suffix(b"\r\n") else {
        return match bytes.len() {
            LONGEST_LINE.. => Err(ProxyError("the line of the PROXY header is too long")),
            _ => Ok(Progress::Needs(1)),
        };
    };
    let malformed = ProxyError("the PROXY header is malformed");
    let line = std::str::from_utf8(line).map_err(|_| malformed)?;
    let fields: Vec<&str> = line.split(' ').collect();
    let source = match fields[..] {
        ["PROXY", "UNKNOWN", ..] => None,
        [
            "PROXY",
            family @ ("TCP4" | "TCP6"),
            source,
            target,
            source_port,
            target_port,
        ] => {
            let ip = |text: &str| -> Result<IpAddr, ProxyError> {
                match family {
                    "TCP4" => text.parse().map(IpAddr::V4).map_err(|_| malformed),
                    _ => text.parse().map(IpAddr::V6).map_err(|_| malformed),
                }
            };
            let port = |text: &str| text.parse::<u16>().map_err(|_| malformed);
            ip(target)?;
            port(target_port)?;
            Some(SocketAddr::new(ip(source)?, port(source_port)?))
        }
        _ => return Err(malformed),
    };
    Ok(Progress::Whole(source))
}

/// Version 2: binary.
fn binary(bytes: &[u8]) -> Result<Progress, ProxyError> {
    let Some((fixed, rest)) = bytes.split_first_chunk::<FIXED_BYTES>() else {
        // Both versions are longer than the signature.
        let missing = match bytes.len() < SIGNATURE.len() {
            true => SIGNATURE.len() - bytes.len(),
            false => FIXED_BYTES - bytes.len(),
        };
        return Ok(Progress::Needs(missing));
    };
    let (version, command) = (fixed[12] >> 4, fixed[12] & 0x0f);
    let length = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    if version != 2 || command > 1 {
        let text = "the version or command of the PROXY header is not known";
        return Err(ProxyError(text));
    }
    if FIXED_BYTES + length > LARGEST_HEADER_BYTES {
        return Err(ProxyError("the PROXY header is longer than it may be"));
    }
    if rest.len() < length {
        return Ok(Progress::Needs(length - rest.len()));
    }
    let is_local = command == 0;
    let source = match fixed[13] {
        _ if is_local => None,
        // AF_INET and AF_INET6 over a stream.
        0x11 => match rest.first_chunk::<12>() {
            Some([a, b, c, d, _, _, _, _, high, low, ..]) => {
                let ip = Ipv4Addr::new(*a, *b, *c, *d);
                Some(SocketAddr::new(
                    ip.into(),
                    u16::from_be_bytes([*high, *low]),
                ))
            }
            None => return Err(ProxyError("the PROXY header has no room for its addresses")),
        },
        0x21 => match (rest.first_chunk::<16>(), rest.get(32..34)) {
            (Some(ip), Some([high, low])) if rest.len() >= 36 => {
                let port = u16::from_be_bytes([*high, *low]);
                Some(SocketAddr::new(Ipv6Addr::from(*ip).into(), port))
            }
            _ => return Err(ProxyError("the PROXY header has no room for its addresses")),
        },
        // AF_UNSPEC, AF_UNIX and datagrams: the connection itself is what is known.
        _ => None,
    };
    Ok(Progress::Whole(source))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads a header as a connection does, byte counts as asked for. Returns the source and how much was read.
    fn read(bytes: &[u8]) -> Result<(Option<SocketAddr>, usize), ProxyError> {
        let mut at = 0;
        loop {
            match progress(&bytes[..at])? {
                Progress::Whole(source) => return Ok((source, at)),
                Progress::Needs(more) => {
                    assert!(more > 0 && at + more <= LARGEST_HEADER_BYTES);
                    if at + more > bytes.len() {
                        return Err(ProxyError("truncated"));
                    }
                    at += more;
                }
            }
        }
    }

    fn binary_header(family: u8, command: u8, addresses: &[u8]) -> Vec<u8> {
        let mut header = SIGNATURE.to_vec();
        header.extend_from_slice(&[0x20 | command, family]);
        header.extend_from_slice(&(addresses.len() as u16).to_be_bytes());
        header.extend_from_slice(addresses);
        header
    }

    #[test]
    fn both_versions_tell_the_source() {
        let line = b"PROXY TCP4 192.0.2.1 198.51.100.2 5000 1883\r\nnext";
        let source = "192.0.2.1:5000".parse().ok();
        assert_eq!(read(line), Ok((source, line.len() - 4)));
        let line = b"PROXY TCP6 2001:db8::1 2001:db8::2 5000 1883\r\n";
        assert_eq!(
            read(line),
            Ok(("[2001:db8::1]:5000".parse().ok(), line.len()))
        );
        assert_eq!(read(b"PROXY UNKNOWN\r\n\x10"), Ok((None, 15)));
        let mut addresses = [192, 0, 2, 1, 198, 51, 100, 2, 0x13, 0x88, 7, 91].to_vec();
        addresses.extend_from_slice(b"\x04\0\x03abc");
        let header = binary_header(0x11, 1, &addresses);
        assert_eq!(read(&header), Ok((source, header.len())));
        let local = binary_header(0x11, 0, &addresses);
        assert_eq!(read(&local), Ok((None, local.len())));
        let unix = binary_header(0x31, 1, &[0; 216]);
        assert_eq!(read(&unix), Ok((None, unix.len())));
    }

    #[test]
    fn what_is_no_header_is_refused_at_once() {
        for bytes in [
            &b"\x10\x0d\0\x04MQTT\x05\x02\0\0\0\0\0"[..],
            b"PROXY TCP4 192.0.2.1 198.51.100.2 70000 1883\r\n",
            b"PROXY TCP4 2001:db8::1 198.51.100.2 5000 1883\r\n",
            b"PROXY TCP5 192.0.2.1 198.51.100.2 5000 1883\r\n",
            b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\x0c",
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff",
        ] {
            let error = read(bytes).expect_err("it is none");
            assert_ne!(error.0, "truncated", "{bytes:?}");
        }
        let short = binary_header(0x21, 1, &[0; 20]);
        assert!(read(&short).is_err());
        let endless = [&b"PROXY TCP4 "[..], &[b'1'; 200]].concat();
        assert!(read(&endless).is_err());
    }

    proptest! {
        #[test]
        fn a_written_header_is_read_back_and_nothing_behind_it(
            ip: u128, is_v4: bool, port: u16, is_text: bool, tlvs in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let ip: IpAddr = match is_v4 {
                true => Ipv4Addr::from(ip as u32).into(),
                false => Ipv6Addr::from(ip).into(),
            };
            let mut header = match (is_text, ip) {
                (true, IpAddr::V4(ip)) => format!("PROXY TCP4 {ip} 127.0.0.1 {port} 1\r\n").into_bytes(),
                (true, IpAddr::V6(ip)) => format!("PROXY TCP6 {ip} ::1 {port} 1\r\n").into_bytes(),
                (false, IpAddr::V4(ip)) => {
                    let addresses = [&ip.octets()[..], &[0; 4], &port.to_be_bytes(), &[0; 2], &tlvs].concat();
                    binary_header(0x11, 1, &addresses)
                }
                (false, IpAddr::V6(ip)) => {
                    let addresses = [&ip.octets()[..], &[0; 16], &port.to_be_bytes(), &[0; 2], &tlvs].concat();
                    binary_header(0x21, 1, &addresses)
                }
            };
            let length = header.len();
            header.extend_from_slice(b"\x10\x0d\0\x04MQTT");
            prop_assert_eq!(read(&header), Ok((Some(SocketAddr::new(ip, port)), length)));
        }

        #[test]
        fn no_bytes_make_it_panic_or_read_without_end(
            start in 0..3usize, bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let start: &[u8] = [&b""[..], b"PROXY TCP4 ", SIGNATURE][start];
            let _ = read(&[start, &bytes].concat());
        }
    }
}
