//! `quorumq check`: reports the problems of a configuration, or its effective values.

use clap::Args;
use serde_json::json;

use super::exit::{Exit, Failure, Outcome};
use super::output::{self, Format};
use super::settings::Settings;
use crate::config::Loaded;

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
        (Ok(_), Format::Table) => Ok(output::line(format!(
            "{}: ok",
            name.as_deref().unwrap_or("configuration")
        ))?),
        (Ok(_), Format::Json) => Ok(output::json(&json!({ "ok": true, "problems": [] }))?),
        (Err(problems), Format::Table) => Err(problems.into()),
        (Err(problems), Format::Json) => {
            output::json(&json!({ "ok": false, "problems": problems }))?;
            Err(Failure::new(Exit::BadConfiguration, ""))
        }
    }
}

fn effective(loaded: &Loaded, format: Format) -> Outcome {
    let values = loaded.effective();
    match format {
        Format::Table => {
            let rows: Vec<_> = values
                .into_iter()
                .map(|(key, value, origin)| vec![key.to_owned(), value, origin.to_string()])
                .collect();
            output::table(&["KEY", "VALUE", "ORIGIN"], &rows)?;
        }
        Format::Json => {
            for (key, value, origin) in values {
                output::json(&json!({ "key": key, "value": value, "origin": origin }))?;
            }
        }
    }
    Ok(())
}
