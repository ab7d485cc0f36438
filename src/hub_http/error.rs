//! Why a request is refused, as back ends are told: a status, a name that programs go by, and a sentence for people.

use axum::http::StatusCode;

use crate::http::Full;

/// The name of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    ArgumentInvalid,
    FormatError,
    InvalidProtocolVersion,
    Unauthorized,
    DeviceNotFound,
    ModuleNotFound,
    NotFound,
    /// Other methods are allowed.
    OperationNotAllowed {
        allowed: &'static str,
    },
    NotImplemented,
    DeviceAlreadyExists,
    ModuleAlreadyExists,
    PreconditionFailed,
    MessageTooLarge,
    TooManyDevices,
    TooManyModules,
    Throttled,
    Unavailable,
    TimedOut,
    Internal,
}

impl Code {
    /// The header `iothub-errorcode`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Code::ArgumentInvalid => "ArgumentInvalid",
            Code::FormatError => "IotHubFormatError",
            Code::InvalidProtocolVersion => "InvalidProtocolVersion",
            Code::Unauthorized => "IotHubUnauthorizedAccess",
            Code::DeviceNotFound => "DeviceNotFound",
            Code::ModuleNotFound => "ModuleNotFound",
            Code::NotFound => "NotFound",
            Code::OperationNotAllowed { .. } => "OperationNotAllowed",
            Code::NotImplemented => "NotImplemented",
            Code::DeviceAlreadyExists => "DeviceAlreadyExists",
            Code::ModuleAlreadyExists => "ModuleAlreadyExistsOnDevice",
            Code::PreconditionFailed => "PreconditionFailed",
            Code::MessageTooLarge => "MessageTooLarge",
            Code::TooManyDevices => "TooManyDevices",
            Code::TooManyModules => "TooManyModulesOnDevice",
            Code::Throttled => "ThrottlingException",
            Code::Unavailable => "ServiceUnavailable",
            Code::TimedOut => "GatewayTimeout",
            Code::Internal => "ServerError",
        }
    }

    /// The status of the answer.
    pub(super) fn status(self) -> StatusCode {
        match self {
            Code::ArgumentInvalid | Code::FormatError | Code::InvalidProtocolVersion => {
                StatusCode::BAD_REQUEST
            }
            Code::Unauthorized => StatusCode::UNAUTHORIZED,
            Code::DeviceNotFound | Code::ModuleNotFound | Code::NotFound => StatusCode::NOT_FOUND,
            Code::OperationNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Code::NotImplemented => StatusCode::NOT_IMPLEMENTED,
            Code::DeviceAlreadyExists | Code::ModuleAlreadyExists => StatusCode::CONFLICT,
            Code::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
            Code::MessageTooLarge | Code::TooManyDevices | Code::TooManyModules => {
                StatusCode::PAYLOAD_TOO_LARGE
            }
            Code::Throttled => StatusCode::TOO_MANY_REQUESTS,
            Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Code::TimedOut => StatusCode::GATEWAY_TIMEOUT,
            Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {text}", .code.name())]
pub(super) struct Refusal {
    pub(super) code: Code,
    /// A sentence for people.
    pub(super) text: String,
}

impl From<Full> for Refusal {
    fn from(full: Full) -> Refusal {
        Refusal::new(Code::Throttled, full)
    }
}

impl Refusal {
    pub(super) fn new(code: Code, text: impl ToString) -> Refusal {
        Refusal {
            code,
            text: text.to_string(),
        }
    }

    /// A rule that an argument breaks.
    pub(super) fn invalid(text: impl ToString) -> Refusal {
        Refusal::new(Code::ArgumentInvalid, text)
    }
}
