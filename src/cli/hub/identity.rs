//! `quorumq device` and `quorumq module`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Value, json};

use super::super::exit::{Failure, Outcome};
use super::super::output::{self, Format};
use super::place::{Hub, json, path};
use super::sas::{self, Signing};
use crate::config::secret_file;

/// Make, look at and change the devices of the hub.
#[derive(Args)]
pub struct DeviceCommand {
    #[command(flatten)]
    hub: Hub,

    #[command(subcommand)]
    command: OfDevice,
}

#[derive(Subcommand)]
enum OfDevice {
    /// Make a device, with new keys unless told otherwise, and print it.
    Create {
        /// Id of the device.
        id: String,
        #[command(flatten)]
        status: Status,
        #[command(flatten)]
        proof: Proof,
    },
    /// List devices.
    List {
        /// Most that are listed, up to 1000.
        #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1000))]
        top: u32,
    },
    /// Show a device with its keys.
    Show {
        /// Id of the device.
        id: String,
    },
    /// Change a device. What is not named stays; its connections end if what they were opened with is gone.
    Update {
        /// Id of the device.
        id: String,
        /// Let it connect again.
        #[arg(long, conflicts_with = "disabled")]
        enabled: bool,
        #[command(flatten)]
        status: Status,
        #[command(flatten)]
        proof: Proof,
    },
    /// Delete a device with its modules, twins and sessions; their connections end.
    Delete {
        /// Id of the device.
        id: String,
        /// The etag that it must have; any when absent.
        #[arg(long)]
        etag: Option<String>,
    },
    /// Make a token with which a device connects. Nobody is asked for it.
    Sas {
        /// Id of the device.
        id: String,
        #[command(flatten)]
        arguments: Signing,
    },
}

/// Make, look at and change the modules of devices.
#[derive(Args)]
pub struct ModuleCommand {
    #[command(flatten)]
    hub: Hub,

    #[command(subcommand)]
    command: OfModule,
}

#[derive(Subcommand)]
enum OfModule {
    /// Make a module, with new keys unless told otherwise, and print it.
    Create {
        /// DEVICE/MODULE.
        #[arg(value_parser = module_id)]
        id: String,
        /// Who manages it.
        #[arg(long, value_name = "TEXT")]
        managed_by: Option<String>,
        #[command(flatten)]
        proof: Proof,
    },
    /// List the modules of a device.
    List {
        /// Id of the device.
        device: String,
    },
    /// Show a module with its keys.
    Show {
        /// DEVICE/MODULE.
        #[arg(value_parser = module_id)]
        id: String,
    },
    /// Change a module. What is not named stays; its connection ends if what it was opened with is gone.
    Update {
        /// DEVICE/MODULE.
        #[arg(value_parser = module_id)]
        id: String,
        /// Who manages it.
        #[arg(long, value_name = "TEXT")]
        managed_by: Option<String>,
        #[command(flatten)]
        proof: Proof,
    },
    /// Delete a module with its twin and session; its connection ends.
    Delete {
        /// DEVICE/MODULE.
        #[arg(value_parser = module_id)]
        id: String,
        /// The etag that it must have; any when absent.
        #[arg(long)]
        etag: Option<String>,
    },
    /// Make a token with which a module connects. Nobody is asked for it.
    Sas {
        /// DEVICE/MODULE.
        #[arg(value_parser = module_id)]
        id: String,
        #[command(flatten)]
        arguments: Signing,
    },
}

/// Whether a device may connect.
#[derive(Args)]
struct Status {
    /// Keep it from connecting.
    #[arg(long)]
    disabled: bool,

    /// Why it is what it is.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// How an identity shows who it is.
#[derive(Args)]
#[group(multiple = false)]
struct Proof {
    /// File of two lines: the primary and the secondary key, base64.
    #[arg(long, value_name = "FILE")]
    keys_file: Option<PathBuf>,

    /// Two new keys.
    #[arg(long)]
    new_keys: bool,

    /// A certificate with this SHA-1 or SHA-256 thumbprint; a second one may follow after a comma.
    #[arg(long, value_name = "HEX", value_delimiter = ',', num_args = 1..=2)]
    thumbprint: Vec<String>,

    /// A certificate that comes from hub.client_ca_file and is made out to the id.
    #[arg(long)]
    certificate_authority: bool,
}

fn module_id(text: &str) -> Result<String, String> {
    let is_module = text.split('/').count() == 2 && !text.starts_with('/') && !text.ends_with('/');
    match is_module {
        true => Ok(text.to_owned()),
        false => Err("a module is DEVICE/MODULE".to_owned()),
    }
}

impl Status {
    fn put(&self, document: &mut Value) {
        if self.disabled {
            document["status"] = json!("disabled");
        }
        if let Some(reason) = &self.reason {
            document["statusReason"] = json!(reason);
        }
    }
}

impl Proof {
    fn put(&self, document: &mut Value) -> Result<(), Failure> {
        if let Some(path) = &self.keys_file {
            let text = secret_file::lines(path).map_err(Failure::failed)?;
            let keys: Vec<&str> = text.lines().map(str::trim).collect();
            let [primary, secondary] = keys[..] else {
                let text = format!("{}: two lines are expected", path.display());
                return Err(Failure::failed(text));
            };
            let keys = json!({ "primaryKey": primary, "secondaryKey": secondary });
            document["authentication"] = json!({ "type": "sas", "symmetricKey": keys });
        } else if self.new_keys {
            document["authentication"] = json!({ "type": "sas" });
        } else if let Some(primary) = self.thumbprint.first() {
            let thumbprints = json!({
                "primaryThumbprint": primary,
                "secondaryThumbprint": self.thumbprint.get(1),
            });
            document["authentication"] =
                json!({ "type": "selfSigned", "x509Thumbprint": thumbprints });
        } else if self.certificate_authority {
            document["authentication"] = json!({ "type": "certificateAuthority" });
        }
        Ok(())
    }
}

/// Runs `quorumq device`.
pub async fn device(arguments: DeviceCommand, format: Format) -> Outcome {
    let hub = &arguments.hub;
    match arguments.command {
        OfDevice::Create { id, status, proof } => {
            let mut document = document(&id);
            status.put(&mut document);
            proof.put(&mut document)?;
            create(hub, &id, &document, format).await
        }
        OfDevice::List { top } => list(hub, &format!("/devices?top={top}"), format).await,
        OfDevice::Show { id } => show(&get(hub, &id).await?, format),
        OfDevice::Update {
            id,
            enabled,
            status,
            proof,
        } => {
            let mut document = get(hub, &id).await?;
            if enabled {
                document["status"] = json!("enabled");
            }
            status.put(&mut document);
            proof.put(&mut document)?;
            update(hub, &id, &document, format).await
        }
        OfDevice::Delete { id, etag } => delete(hub, &id, etag).await,
        OfDevice::Sas { id, arguments } => sas::run(hub, &id, &arguments, format),
    }
}

/// Runs `quorumq module`.
pub async fn module(arguments: ModuleCommand, format: Format) -> Outcome {
    let hub = &arguments.hub;
    match arguments.command {
        OfModule::Create {
            id,
            managed_by,
            proof,
        } => {
            let mut document = document(&id);
            document["managedBy"] = json!(managed_by);
            proof.put(&mut document)?;
            create(hub, &id, &document, format).await
        }
        OfModule::List { device } => {
            let path = format!("{}/modules", path("devices", &device));
            list(hub, &path, format).await
        }
        OfModule::Show { id } => show(&get(hub, &id).await?, format),
        OfModule::Update {
            id,
            managed_by,
            proof,
        } => {
            let mut document = get(hub, &id).await?;
            if managed_by.is_some() {
                document["managedBy"] = json!(managed_by);
            }
            proof.put(&mut document)?;
            update(hub, &id, &document, format).await
        }
        OfModule::Delete { id, etag } => delete(hub, &id, etag).await,
        OfModule::Sas { id, arguments } => sas::run(hub, &id, &arguments, format),
    }
}

/// The document of a new identity.
fn document(id: &str) -> Value {
    match id.split_once('/') {
        Some((device, module)) => json!({ "deviceId": device, "moduleId": module }),
        None => json!({ "deviceId": id }),
    }
}

async fn get(hub: &Hub, id: &str) -> Result<Value, Failure> {
    let answer = hub
        .ask(Method::GET, &path("devices", id), &[], None)
        .await?;
    json(&answer)
}

async fn create(hub: &Hub, id: &str, document: &Value, format: Format) -> Outcome {
    let path = path("devices", id);
    let answer = hub.ask(Method::PUT, &path, &[], Some(document)).await?;
    show(&json(&answer)?, format)
}

/// Writes an identity that was read a moment ago, unless somebody else has written it meanwhile.
async fn update(hub: &Hub, id: &str, document: &Value, format: Format) -> Outcome {
    let etag = document["etag"].as_str().unwrap_or_default();
    let fields = [("if-match", &*format!("\"{etag}\""))];
    let path = path("devices", id);
    let answer = hub.ask(Method::PUT, &path, &fields, Some(document)).await?;
    show(&json(&answer)?, format)
}

async fn delete(hub: &Hub, id: &str, etag: Option<String>) -> Outcome {
    let wanted = etag.map_or_else(|| "*".to_owned(), |etag| format!("\"{etag}\""));
    let fields = [("if-match", &*wanted)];
    let path = path("devices", id);
    hub.ask(Method::DELETE, &path, &fields, None)
        .await
        .map(drop)
}

/// One identity: its members, one in a line.
fn show(identity: &Value, format: Format) -> Outcome {
    if format == Format::Json {
        return Ok(output::json(identity)?);
    }
    let mut rows = Vec::new();
    flatten("", identity, &mut rows);
    Ok(output::table(&["FIELD", "VALUE"], &rows)?)
}

fn flatten(name: &str, value: &Value, rows: &mut Vec<Vec<String>>) {
    if let Value::Object(members) = value {
        for (key, value) in members {
            let dot = if name.is_empty() { "" } else { "." };
            flatten(&format!("{name}{dot}{key}"), value, rows);
        }
        return;
    }
    let text = value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned);
    rows.push(vec![name.to_owned(), text]);
}

async fn list(hub: &Hub, path: &str, format: Format) -> Outcome {
    let answer = json(&hub.ask(Method::GET, path, &[], None).await?)?;
    let listed = answer.as_array().into_iter().flatten();
    if format == Format::Json {
        for identity in listed {
            output::json(identity)?;
        }
        return Ok(());
    }
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let rows: Vec<Vec<String>> = listed
        .map(|identity| {
            let device = text(&identity["deviceId"]);
            let id = match identity["moduleId"].as_str() {
                Some(module) => format!("{device}/{module}"),
                None => device,
            };
            let authentication = text(&identity["authentication"]["type"]);
            let state = text(&identity["connectionState"]);
            vec![id, text(&identity["status"]), authentication, state]
        })
        .collect();
    Ok(output::table(
        &["ID", "STATUS", "AUTHENTICATION", "CONNECTION"],
        &rows,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_has_two_parts() {
        assert!(module_id("d/m").is_ok());
        for wrong in ["d", "d/", "/m", "d/m/x", ""] {
            assert!(module_id(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn members_are_shown_with_their_paths() {
        let mut rows = Vec::new();
        flatten(
            "",
            &json!({ "a": { "b": "x", "c": null }, "d": 1 }),
            &mut rows,
        );
        assert_eq!(rows, [["a.b", "x"], ["a.c", "null"], ["d", "1"]]);
    }
}
