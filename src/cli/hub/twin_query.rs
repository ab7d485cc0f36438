//! `quorumq twin query`: all pages of a query.

use std::collections::BTreeSet;

use hyper::Method;
use serde_json::{Value, json as json_value};

use super::super::exit::{Failure, Outcome};
use super::super::output::{self, Format};
use super::place::{Hub, json};

/// Prints what a query finds, page by page: JSON one item in a line, or a table.
pub async fn run(hub: &Hub, query: &str, items: u32, format: Format) -> Outcome {
    let body = json_value!({ "query": query });
    let items = items.to_string();
    let mut continuation: Option<String> = None;
    let mut all = Vec::new();
    loop {
        let mut fields = vec![("x-ms-max-item-count", items.as_str())];
        fields.extend(
            continuation
                .iter()
                .map(|token| ("x-ms-continuation", token.as_str())),
        );
        let answer = hub
            .ask(Method::POST, "/devices/query", &fields, Some(&body))
            .await?;
        let header = |name: &str| {
            let value = answer.headers.get(name)?;
            value.to_str().ok().map(str::to_owned)
        };
        let is_twin = header("x-ms-item-type").as_deref() == Some("Twin");
        let Value::Array(page) = json(&answer)? else {
            return Err(Failure::failed(
                "the hub answered something else than a list",
            ));
        };
        match format {
            Format::Json => page.iter().try_for_each(output::json)?,
            Format::Table if is_twin => all.extend(page.iter().map(summary)),
            Format::Table => all.extend(page),
        }
        continuation = header("x-ms-continuation");
        if continuation.is_none() {
            break;
        }
    }
    match format {
        Format::Json => Ok(()),
        Format::Table => Ok(table(&all)?),
    }
}

/// What a table shows of a whole twin.
fn summary(twin: &Value) -> Value {
    let names = [
        "deviceId",
        "moduleId",
        "status",
        "connectionState",
        "version",
    ];
    let shown = names.into_iter().filter(|name| !twin[*name].is_null());
    shown
        .map(|name| (name.to_owned(), twin[name].clone()))
        .collect()
}

/// All names that occur are the columns.
fn table(rows: &[Value]) -> std::io::Result<()> {
    let members = rows.iter().filter_map(Value::as_object).flatten();
    let names: BTreeSet<&str> = members.map(|(name, _)| name.as_str()).collect();
    let head: Vec<&str> = names.iter().copied().collect();
    let cell = |row: &Value, name: &str| match &row[name] {
        Value::Null if row.get(name).is_none() => "-".to_owned(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    let cells = rows
        .iter()
        .map(|row| head.iter().map(|name| cell(row, name)).collect());
    output::table(&head, &cells.collect::<Vec<_>>())
}
