//! What is asked: routes, by method and path.

use axum::http::Method;

use super::error::{Code, Refusal};
use crate::registry::policies::Permission;
use crate::registry::{IdentityId, percent};

/// The parts of a path, each decoded once.
pub(super) fn parts(path: &str) -> Vec<String> {
    let path = path.strip_prefix('/').unwrap_or(path);
    // What is no text stands for itself in no id, so it is refused as one.
    let part = |part| percent::decode(part).unwrap_or_else(|| char::REPLACEMENT_CHARACTER.into());
    path.split('/').map(part).collect()
}

/// Whose identity or twin it is, as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Named<'a> {
    pub(super) device: &'a str,
    pub(super) module: Option<&'a str>,
}

/// What is done with an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfIdentity {
    Get,
    Put,
    Delete,
}

/// What is done with a twin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfTwin {
    Get,
    Patch,
    Put,
}

/// A request that there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route<'a> {
    Devices,
    Modules(&'a str),
    Identity(OfIdentity, Named<'a>),
    Twin(OfTwin, Named<'a>),
    Query,
}

impl Route<'_> {
    /// What its caller needs.
    pub(super) fn permission(self) -> Permission {
        match self {
            Route::Devices | Route::Modules(_) | Route::Identity(OfIdentity::Get, _) => {
                Permission::RegistryRead
            }
            Route::Identity(OfIdentity::Put | OfIdentity::Delete, _) => Permission::RegistryWrite,
            Route::Twin(..) | Route::Query => Permission::ServiceConnect,
        }
    }
}

/// A request that there is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRoute {
    /// Nothing has this path.
    NotFound,
    /// What has this path is asked by other methods.
    OtherMethod(&'static str),
    /// The service whose clients are served has it, and this one does not.
    NotImplemented,
}

/// Whom a path names.
pub(super) fn id(named: Named<'_>) -> Result<IdentityId, Refusal> {
    let id = match named.module {
        None => IdentityId::device(named.device),
        Some(module) => IdentityId::module(named.device, module),
    };
    id.map_err(Refusal::invalid)
}

impl From<NoRoute> for Refusal {
    fn from(no_route: NoRoute) -> Refusal {
        match no_route {
            NoRoute::NotFound => Refusal::new(Code::NotFound, "there is nothing of this path"),
            NoRoute::OtherMethod(allowed) => {
                let text = format!("this is asked by {allowed}");
                Refusal::new(Code::OperationNotAllowed { allowed }, text)
            }
            NoRoute::NotImplemented => {
                Refusal::new(Code::NotImplemented, "this hub does not have that")
            }
        }
    }
}

/// First parts of paths of the other service that are not here: jobs, configurations, statistics and the like.
const NOT_HERE: [&str; 6] = [
    "configurations",
    "digitaltwins",
    "jobs",
    "messages",
    "statistics",
    "serviceStatistics",
];

/// Parts behind a device or a module that are not here: methods, files, what devices ask over HTTPS.
const NOT_HERE_BELOW: [&str; 5] = [
    "applyConfigurationContent",
    "commands",
    "files",
    "messages",
    "methods",
];

/// The request that a method and the parts of a path are.
pub(super) fn find<'a>(method: &Method, parts: &'a [String]) -> Result<Route<'a>, NoRoute> {
    let mut texts = [""; 5];
    if parts.len() > texts.len() || parts.iter().any(String::is_empty) {
        return Err(elsewhere(parts));
    }
    for (text, part) in texts.iter_mut().zip(parts) {
        *text = part;
    }
    match texts[..parts.len()] {
        ["devices"] => match *method {
            Method::GET => Ok(Route::Devices),
            // Many devices in one request.
            Method::POST => Err(NoRoute::NotImplemented),
            _ => Err(NoRoute::OtherMethod("GET")),
        },
        ["devices", "query"] if *method == Method::POST => Ok(Route::Query),
        ["devices", device] => {
            let named = Named {
                device,
                module: None,
            };
            identity(method, named).map_err(|no_route| match no_route {
                // A device may have this id, too.
                NoRoute::OtherMethod(_) if device == "query" => {
                    NoRoute::OtherMethod("GET, PUT, DELETE, POST")
                }
                no_route => no_route,
            })
        }
        ["devices", device, "modules"] => match *method {
            Method::GET => Ok(Route::Modules(device)),
            _ => Err(NoRoute::OtherMethod("GET")),
        },
        ["devices", device, "modules", module] => identity(
            method,
            Named {
                device,
                module: Some(module),
            },
        ),
        ["twins", device] => twin(
            method,
            Named {
                device,
                module: None,
            },
        ),
        ["twins", device, "modules", module] => twin(
            method,
            Named {
                device,
                module: Some(module),
            },
        ),
        _ => Err(elsewhere(parts)),
    }
}

fn identity<'a>(method: &Method, named: Named<'a>) -> Result<Route<'a>, NoRoute> {
    let of = match *method {
        Method::GET => OfIdentity::Get,
        Method::PUT => OfIdentity::Put,
        Method::DELETE => OfIdentity::Delete,
        _ => return Err(NoRoute::OtherMethod("GET, PUT, DELETE")),
    };
    Ok(Route::Identity(of, named))
}

fn twin<'a>(method: &Method, named: Named<'a>) -> Result<Route<'a>, NoRoute> {
    let of = match *method {
        Method::GET => OfTwin::Get,
        Method::PATCH => OfTwin::Patch,
        Method::PUT => OfTwin::Put,
        _ => return Err(NoRoute::OtherMethod("GET, PATCH, PUT")),
    };
    Ok(Route::Twin(of, named))
}

/// What a path is that is not served.
fn elsewhere(parts: &[String]) -> NoRoute {
    let part = |at: usize| parts.get(at).map_or("", String::as_str);
    let below = match (part(0), part(2)) {
        ("devices" | "twins", "modules") => part(4),
        ("devices" | "twins", below) => below,
        _ => "",
    };
    match NOT_HERE.contains(&part(0)) || NOT_HERE_BELOW.contains(&below) {
        true => NoRoute::NotImplemented,
        false => NoRoute::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(method: &Method, path: &str) -> Result<String, NoRoute> {
        let parts = parts(path);
        find(method, &parts).map(|route| format!("{route:?}"))
    }

    #[test]
    fn every_route_with_its_permission() {
        use Permission::{RegistryRead, RegistryWrite, ServiceConnect};
        let device = Named {
            device: "d",
            module: None,
        };
        let module = Named {
            module: Some("m"),
            ..device
        };
        for (method, path, expected, permission) in [
            (Method::GET, "/devices", Route::Devices, RegistryRead),
            (
                Method::GET,
                "/devices/d",
                Route::Identity(OfIdentity::Get, device),
                RegistryRead,
            ),
            (
                Method::PUT,
                "/devices/d",
                Route::Identity(OfIdentity::Put, device),
                RegistryWrite,
            ),
            (
                Method::DELETE,
                "/devices/d",
                Route::Identity(OfIdentity::Delete, device),
                RegistryWrite,
            ),
            (
                Method::GET,
                "/devices/d/modules",
                Route::Modules("d"),
                RegistryRead,
            ),
            (
                Method::GET,
                "/devices/d/modules/m",
                Route::Identity(OfIdentity::Get, module),
                RegistryRead,
            ),
            (
                Method::PUT,
                "/devices/d/modules/m",
                Route::Identity(OfIdentity::Put, module),
                RegistryWrite,
            ),
            (
                Method::DELETE,
                "/devices/d/modules/m",
                Route::Identity(OfIdentity::Delete, module),
                RegistryWrite,
            ),
            (
                Method::GET,
                "/twins/d",
                Route::Twin(OfTwin::Get, device),
                ServiceConnect,
            ),
            (
                Method::PATCH,
                "/twins/d/modules/m",
                Route::Twin(OfTwin::Patch, module),
                ServiceConnect,
            ),
            (
                Method::PUT,
                "/twins/d",
                Route::Twin(OfTwin::Put, device),
                ServiceConnect,
            ),
            (Method::POST, "/devices/query", Route::Query, ServiceConnect),
        ] {
            let parts = parts(path);
            let route = find(&method, &parts).expect(path);
            assert_eq!(
                (route, route.permission()),
                (expected, permission),
                "{path}"
            );
        }
    }

    #[test]
    fn parts_are_decoded_once() {
        let device = |path: &str| match find(&Method::GET, &parts(path)) {
            Ok(Route::Twin(_, named)) => named.device.to_owned(),
            other => panic!("{path}: {other:?}"),
        };
        assert_eq!(device("/twins/a%2Fb"), "a/b");
        assert_eq!(device("/twins/50%2525"), "50%25");
        assert_eq!(device("/twins/%ff"), "\u{fffd}");
        assert_eq!(device("/twins/query"), "query");
        assert!(found(&Method::GET, "/devices/query").is_ok_and(|it| it.contains("\"query\"")));
    }

    #[test]
    fn what_there_is_not() {
        let other = |allowed| Err(NoRoute::OtherMethod(allowed));
        for (method, path, expected) in [
            (Method::GET, "/", Err(NoRoute::NotFound)),
            (Method::GET, "/v1/users", Err(NoRoute::NotFound)),
            (Method::GET, "/devices/", Err(NoRoute::NotFound)),
            (Method::GET, "/devices/d/", Err(NoRoute::NotFound)),
            (Method::GET, "/devices/d/modules/", Err(NoRoute::NotFound)),
            (Method::GET, "/Devices/d", Err(NoRoute::NotFound)),
            (Method::GET, "/twins", Err(NoRoute::NotFound)),
            (Method::GET, "/twins/d/modules", Err(NoRoute::NotFound)),
            (
                Method::GET,
                "/devices/d/modules/m/x",
                Err(NoRoute::NotFound),
            ),
            (Method::HEAD, "/devices", other("GET")),
            (Method::POST, "/devices/d", other("GET, PUT, DELETE")),
            (
                Method::PATCH,
                "/devices/d/modules/m",
                other("GET, PUT, DELETE"),
            ),
            (Method::DELETE, "/twins/d", other("GET, PATCH, PUT")),
            (Method::PUT, "/devices/d/modules", other("GET")),
            (
                Method::PATCH,
                "/devices/query",
                other("GET, PUT, DELETE, POST"),
            ),
            (Method::POST, "/devices", Err(NoRoute::NotImplemented)),
            (
                Method::POST,
                "/twins/d/methods",
                Err(NoRoute::NotImplemented),
            ),
            (
                Method::POST,
                "/twins/d/modules/m/methods",
                Err(NoRoute::NotImplemented),
            ),
            (Method::GET, "/jobs/v2/create", Err(NoRoute::NotImplemented)),
            (
                Method::GET,
                "/configurations/c",
                Err(NoRoute::NotImplemented),
            ),
            (
                Method::GET,
                "/statistics/devices",
                Err(NoRoute::NotImplemented),
            ),
            (Method::GET, "/digitaltwins/d", Err(NoRoute::NotImplemented)),
            (
                Method::POST,
                "/devices/d/files/notifications",
                Err(NoRoute::NotImplemented),
            ),
            (
                Method::DELETE,
                "/devices/d/commands",
                Err(NoRoute::NotImplemented),
            ),
            (
                Method::POST,
                "/devices/d/messages/events",
                Err(NoRoute::NotImplemented),
            ),
        ] {
            assert_eq!(found(&method, path), expected, "{method} {path}");
        }
    }
}
