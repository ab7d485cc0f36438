//! Listings end their pages by what they look at, and list everything all the same.

use std::collections::BTreeMap;

use prost::Message as _;

use crate::base::proto::state;
use crate::machine::read::{self, ListBudget};
use crate::machine::schema::{self, Table as _};
use crate::machine::tables::Backing;

#[test]
fn retained_messages_are_listed_once_whatever_a_page_looks_at() {
    let mut rows: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let row = state::Retained {
        payload: vec![0; 100].into(),
        ..Default::default()
    };
    for index in 0..40 {
        let topic = format!("{}/{index:02}", index % 3);
        let key = schema::Retained::encode(topic.as_bytes());
        rows.insert(key, row.encode_to_vec());
    }
    for budget in [ListBudget::of(3, usize::MAX), ListBudget::of(100, 250)] {
        let (mut found, mut pages, mut from) = (Vec::new(), 0, Vec::new());
        loop {
            pages += 1;
            let backing: &dyn Backing = &rows;
            let next = read::retained_page(backing, "#", &from, budget, |topic, _| {
                found.push(topic.to_owned());
                true
            });
            match next {
                Some(last) => from = [last.as_bytes(), &[0]].concat(),
                None => break,
            }
        }
        assert!(found.is_sorted(), "{found:?}");
        assert_eq!((found.len(), pages), (40, 14), "three on a page");
    }
}

#[test]
fn sessions_without_a_connection_do_not_keep_a_page_open() {
    let mut rows: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for index in 0..20u64 {
        let row = state::Session {
            owner_node: u64::from(index % 7 == 0),
            session_id: index,
            ..Default::default()
        };
        let key = schema::Session::encode(&format!("{index:02}"));
        rows.insert(key, row.encode_to_vec());
    }
    let (mut found, mut pages, mut after) = (Vec::new(), 0, String::new());
    loop {
        pages += 1;
        let budget = ListBudget::of(5, usize::MAX);
        let (page, next) = read::sessions(&rows as &dyn Backing, &after, 2, true, budget);
        found.extend(page.into_iter().map(|(client_id, _)| client_id));
        match next {
            Some(last) => after = last,
            None => break,
        }
    }
    assert_eq!(
        (found, pages),
        (vec!["00".into(), "07".into(), "14".into()], 4)
    );
}
