//! Requests, and the encoding of what is in them.

use super::hlc::Hlc;

/// A RESP3 array of blob strings.
pub fn resp<A: AsRef<[u8]>>(items: impl IntoIterator<Item = A>) -> Vec<u8> {
    let items: Vec<A> = items.into_iter().collect();
    let mut bytes = format!("*{}\r\n", items.len()).into_bytes();
    for item in items {
        let item = item.as_ref();
        bytes.extend(format!("${}\r\n", item.len()).into_bytes());
        bytes.extend(item);
        bytes.extend(b"\r\n");
    }
    bytes
}

/// A blob string.
pub fn blob(value: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

/// A request; the client adds response topic, correlation data and what else is missing.
#[derive(Debug, Clone)]
pub struct Request {
    pub payload: Vec<u8>,
    /// `__ts`; `None` sends none.
    pub timestamp: Option<String>,
    /// `__ft`.
    pub fencing_token: Option<String>,
}

impl Request {
    /// The items as a RESP3 array, with the client's clock as `__ts`.
    pub fn of<A: AsRef<[u8]>>(items: impl IntoIterator<Item = A>) -> Self {
        Self::raw(resp(items))
    }

    /// Any payload.
    pub fn raw(payload: impl AsRef<[u8]>) -> Self {
        Self {
            payload: payload.as_ref().to_vec(),
            timestamp: Some(Hlc::now("client").to_string()),
            fencing_token: None,
        }
    }

    pub fn at(mut self, timestamp: &str) -> Self {
        self.timestamp = Some(timestamp.to_owned());
        self
    }

    pub fn without_timestamp(mut self) -> Self {
        self.timestamp = None;
        self
    }

    pub fn fenced(mut self, token: &str) -> Self {
        self.fencing_token = Some(token.to_owned());
        self
    }

    pub fn set(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        Self::of([b"SET", key.as_ref(), value.as_ref()])
    }

    pub fn get(key: impl AsRef<[u8]>) -> Self {
        Self::of([b"GET", key.as_ref()])
    }

    pub fn del(key: impl AsRef<[u8]>) -> Self {
        Self::of([b"DEL", key.as_ref()])
    }

    pub fn vdel(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        Self::of([b"VDEL", key.as_ref(), value.as_ref()])
    }

    pub fn keynotify(key: impl AsRef<[u8]>) -> Self {
        Self::of([b"KEYNOTIFY", key.as_ref()])
    }
}
