//! `quorumq check`: reports the problems of a configuration, or its effective values.

use clap::Args;
use serde_json::json;

use super::exit::{Exit, Failure, Outcome};
use super::output::{self, Format};
use super::settings::Settings;
use crate::config::{Loaded, Problem, Problems, file};
use crate::node::certificates;

/// Check a configuration and report every problem with its line.
#[derive(Args)]
pub struct Check {
    #[command(flatten)]
    settings: Settings,

    /// Print every effective value with its origin.
    #[arg(long)]
    effective: bool,
}

/// Runs the command.
pub fn run(check: Check, format: Format) -> Outcome {
    let name = check.settings.file().map(|path| path.display().to_string());
    match (check.settings.load(), format) {
        (Ok(loaded), _) if check.effective => effective(&loaded, format),
        (Ok(loaded), format) => judge_certificates(&loaded, name.as_deref(), format),
        (Err(problems), Format::Table) => Err(problems.into()),
        (Err(problems), Format::Json) => {
            output::json(&json!({ "ok": false, "problems": problems, "warnings": [] }))?;
            Err(Failure::new(Exit::BadConfiguration, ""))
        }
    }
}

/// Looks at the certificates, too: what can't be used is a problem, what expires soon is named.
fn judge_certificates(loaded: &Loaded, name: Option<&str>, format: Format) -> Outcome {
    let mut found = certificates::inspect(&loaded.config);
    found.warnings.extend(file::warnings());
    let open = loaded.config.listeners_for_everybody().into_iter();
    found.warnings.extend(open.map(|listener| {
        let (name, address) = (listener.name, listener.address);
        format!(
            "the listener {name:?} at {address} lets everybody in whom the network brings, as long as there is no user \
             or it says `anonymous`"
        )
    }));
    let problem = |(key, message): &(&str, String)| Problem {
        origin: loaded.origins[*key].clone(),
        key: (*key).to_owned(),
        message: message.clone(),
        hint: None,
    };
    let problems: Vec<_> = found.problems.iter().map(problem).collect();
    let is_ok = problems.is_empty();
    match format {
        Format::Json => {
            output::json(
                &json!({ "ok": is_ok, "problems": problems, "warnings": found.warnings }),
            )?;
        }
        Format::Table => {
            for warning in &found.warnings {
                eprintln!("quorumq: warning: {warning}");
            }
            if is_ok {
                output::line(format!("{}: ok", name.unwrap_or("configuration")))?;
            }
        }
    }
    match (is_ok, format) {
        (true, _) => Ok(()),
        (false, Format::Table) => Err(Problems(problems).into()),
        (false, Format::Json) => Err(Failure::new(Exit::BadConfiguration, "")),
    }
}

fn effective(loaded: &Loaded, format: Format) -> Outcome {
    let values = loaded.effective();
    match format {
        Format::Table => {
            // The value last: a long one widens no column then.
            let rows: Vec<_> = values
                .into_iter()
                .map(|(key, value, origin)| vec![key.to_owned(), origin.to_string(), value])
                .collect();
            output::table(&["KEY", "ORIGIN", "VALUE"], &rows)?;
        }
        Format::Json => {
            for (key, value, origin) in values {
                output::json(&json!({ "key": key, "value": value, "origin": origin }))?;
            }
        }
    }
    Ok(())
}
