//! The body of a request, bounded.

use axum::body::Body;
use http_body_util::BodyExt as _;

use super::error::{Code, Refusal};
use crate::twin::limits::BODY_BYTES;

/// Bytes of a body that is too large that are read and thrown away: a client that sends all of it before it reads then
/// gets to its answer.
const MOST_THROWN_AWAY: usize = 4 << 20;

/// Reads a body.
///
/// # Errors
/// It is too large, or its sender went away.
pub(super) async fn read(mut body: Body) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Refusal::new(Code::FormatError, error))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        length += data.len();
        if length <= BODY_BYTES {
            bytes.extend_from_slice(&data);
        } else {
            bytes = Vec::new();
        }
        if length > MOST_THROWN_AWAY {
            break;
        }
    }
    match length <= BODY_BYTES {
        true => Ok(bytes),
        false => {
            let text = format!("a body has at most {BODY_BYTES} bytes");
            Err(Refusal::new(Code::MessageTooLarge, text))
        }
    }
}
