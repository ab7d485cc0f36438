//! Queries over twins, and their continuations.

use crate::query::{Aggregation, Budget, Cursor, Key, Path, Query, Row, RowPage, Value, passes};

/// A row that has some value at every path.
struct Anything;

impl Row for Anything {
    fn value(&self, path: &Path) -> Value<'_> {
        let names = path.names();
        let last = names.last().expect("a path has a name");
        match (names.len() + last.len()) % 6 {
            0 => Value::Undefined,
            1 => Value::Null,
            2 => Value::Bool(true),
            3 => Value::Number(last.len() as f64),
            4 => Value::text("a text"),
            _ => Value::Composite,
        }
    }

    fn write(&self, path: &Path, json: &mut String) -> bool {
        let is_there = self.value(path) != Value::Undefined;
        if is_there {
            json.push_str("[]");
        }
        is_there
    }

    fn write_all(&self, json: &mut String) {
        json.push_str("{}");
    }
}

/// A query and, behind a line feed, a continuation: what is understood can be run, and makes JSON.
pub fn twin_query(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let (text, token) = match text.split_once('\n') {
        Some((text, token)) => (text, Some(token)),
        None => (text, None),
    };
    let Ok(query) = Query::parse(text) else {
        return;
    };
    let passes = passes(&query, &Anything);
    query.devices();
    let Ok(cursor) = Cursor::read(&query, token) else {
        return;
    };
    let key = Key {
        device: "d".to_owned(),
        module: "m".to_owned(),
    };
    let page = match Aggregation::new(&query) {
        Some(mut aggregation) => {
            aggregation.visit(&Anything).expect("one group");
            aggregation
                .finish(&cursor, Budget::of(10))
                .expect("a small group")
        }
        None => {
            let mut page = RowPage::new(&query, &cursor, Budget::of(1));
            while page.visit(&key, &Anything).expect("a small row") && passes {}
            page.finish()
        }
    };
    let rows: Vec<serde_json::Value> = serde_json::from_str(&page.json).expect("an array");
    assert_eq!(rows.len(), page.items);
    if let Some(token) = page.continuation {
        Cursor::read(&query, Some(&token)).expect("a token of ours");
    }
}
