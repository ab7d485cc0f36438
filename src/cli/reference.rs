//! Pages that are generated from definitions: man pages, and the reference pages under `docs/`.

use std::path::Path;

use clap::{Command, ValueEnum};

use super::exit::{Failure, Outcome};
use super::output;
use crate::{config, telemetry};

/// A page that is generated from a definition.
#[derive(Clone, Copy, ValueEnum)]
pub enum Page {
    /// docs/configuration.md
    Configuration,
    /// A configuration file with every key, commented out.
    Example,
    /// docs/metrics.md
    Metrics,
}

/// The text of a page.
pub fn page(page: Page) -> String {
    match page {
        Page::Configuration => config::markdown(),
        Page::Example => config::example(),
        Page::Metrics => telemetry::metrics::markdown(),
    }
}

/// Writes one man page per command into `directory`, or the main one to standard output.
pub fn man(command: Command, directory: Option<&Path>) -> Outcome {
    match directory {
        None => {
            let mut text = Vec::new();
            clap_mangen::Man::new(command).render(&mut text)?;
            Ok(output::raw(&text)?)
        }
        Some(directory) => {
            let explain = |error| Failure::failed(format!("{}: {error}", directory.display()));
            std::fs::create_dir_all(directory).map_err(explain)?;
            clap_mangen::generate_to(command, directory).map_err(explain)
        }
    }
}
