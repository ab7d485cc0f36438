//! `… sas`: tokens for devices and modules, made without asking anybody.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::super::exit::Outcome;
use super::super::output::{self, Format};
use super::super::token::parse_life;
use super::place::{Hub, key_of_file};
use crate::base::time::wall_now;
use crate::registry::sign::sign;

/// What a token is made of.
#[derive(Args)]
pub struct Signing {
    /// File whose first line is a key of the identity itself; without it the policy's key signs.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,

    /// How long the token holds, for example 90d, 12h, 30m or 45s.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_life)]
    expires: u64,
}

/// Prints a token for an identity.
pub fn run(hub: &Hub, id: &str, arguments: &Signing, format: Format) -> Outcome {
    let resource = match id.split_once('/') {
        Some((device, module)) => {
            format!("{}/devices/{device}/modules/{module}", hub.host_name())
        }
        None => format!("{}/devices/{id}", hub.host_name()),
    };
    let expires_at_s = (wall_now().0 / 1000).saturating_add(arguments.expires);
    let token = match &arguments.key_file {
        Some(path) => sign(&resource, &key_of_file(path)?, expires_at_s, None),
        None => sign(
            &resource,
            &hub.policy_key()?,
            expires_at_s,
            Some(hub.policy()),
        ),
    };
    match format {
        Format::Table => Ok(output::line(token)?),
        Format::Json => Ok(output::json(
            &json!({ "token": token, "expires_at_s": expires_at_s }),
        )?),
    }
}
