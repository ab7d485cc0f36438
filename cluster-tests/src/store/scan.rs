//! SCAN: pages of keys, and all of them.

use super::{Request, StoreClient};

/// One page: its keys and the token of the next.
#[track_caller]
pub fn page(
    client: &mut StoreClient,
    pattern: &str,
    token: Option<&[u8]>,
) -> (Vec<String>, Option<Vec<u8>>) {
    let mut items: Vec<&[u8]> = vec![b"SCAN", pattern.as_bytes()];
    items.extend(token);
    let reply = client.call(&Request::of(items));
    parse_page(&reply.payload).unwrap_or_else(|| {
        panic!(
            "SCAN answered {:?}",
            String::from_utf8_lossy(&reply.payload)
        )
    })
}

fn line<'a>(bytes: &mut &'a [u8], first: u8) -> Option<&'a str> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let (head, rest) = (&bytes[..end], &bytes[end + 2..]);
    *bytes = rest;
    std::str::from_utf8(head.strip_prefix(&[first])?).ok()
}

fn part<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length: usize = line(bytes, b'$')?.parse().ok()?;
    let found = bytes.get(..length)?;
    *bytes = bytes.get(length..)?.strip_prefix(b"\r\n")?;
    Some(found)
}

/// The keys of an answer, and the token of the next page.
pub fn parse_page(mut bytes: &[u8]) -> Option<(Vec<String>, Option<Vec<u8>>)> {
    let parts = line(&mut bytes, b'*')?;
    let count: usize = line(&mut bytes, b'*')?.parse().ok()?;
    let keys = (0..count)
        .map(|_| String::from_utf8(part(&mut bytes)?.to_vec()).ok())
        .collect::<Option<Vec<String>>>()?;
    let token = match parts {
        "1" => None,
        "2" => Some(part(&mut bytes)?.to_vec()),
        _ => return None,
    };
    bytes.is_empty().then_some((keys, token))
}

/// Every key that the pattern lists, and how many pages it took.
#[track_caller]
pub fn scan_all(client: &mut StoreClient, pattern: &str) -> (Vec<String>, usize) {
    let mut keys = Vec::new();
    let mut token: Option<Vec<u8>> = None;
    for pages in 1..=1000 {
        let (found, next) = page(client, pattern, token.as_deref());
        keys.extend(found);
        token = next;
        if token.is_none() {
            return (keys, pages);
        }
    }
    panic!("a scan without an end");
}
