//! Queries over twins.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName};

use super::answer::{Answer, Answered};
use super::error::{Code, Refusal};
use super::hub::{Hub, header};
use super::query_threads::{Pace, Wanted, Work};
use super::twin_row::{LookedUp, is_looked_up, look_up, visit, visit_looked_up};
use crate::base::json::{self, Json};
use crate::http::{AnswerMemory, Held};
use crate::machine::hub::read;
use crate::machine::tables::Backing;
use crate::query::{Aggregation, Budget, Cursor, Key, Page, Query, QueryError, Row, RowPage};
use crate::storage::StateView;

const MAX_ITEM_COUNT: &str = "x-ms-max-item-count";
const CONTINUATION: HeaderName = HeaderName::from_static("x-ms-continuation");
const ITEM_TYPE: HeaderName = HeaderName::from_static("x-ms-item-type");

/// Items of a page, where its caller does not say.
const USUAL_ITEMS: usize = 100;

/// Most items of a page.
const MOST_ITEMS: usize = 1_000;

impl From<QueryError> for Refusal {
    fn from(error: QueryError) -> Refusal {
        Refusal::invalid(error)
    }
}

impl Hub {
    /// `POST /devices/query`
    pub(super) async fn query(&self, headers: &HeaderMap, body: &[u8]) -> Answered {
        let items = items(header(headers, MAX_ITEM_COUNT)?)?;
        let query = Query::parse(&text(body)?)?;
        let token = header(headers, CONTINUATION.as_str())?;
        let cursor = Cursor::read(&query, token.filter(|token| !token.is_empty()))?;
        let asked = Arc::new(Asked {
            query,
            cursor,
            items,
        });
        let Read { page, rows } = self.read_rows(&asked).await?;
        self.broker.metrics.hub_query_rows.add(rows as u64);
        let item_type = asked.query.item_type().as_str();
        let answer = Answer::json(page.json).with(ITEM_TYPE, item_type);
        Ok(match page.continuation {
            Some(continuation) => answer.with(CONTINUATION, &continuation),
            None => answer,
        })
    }

    async fn read_rows(&self, asked: &Arc<Asked>) -> Result<Read, Refusal> {
        let is_aggregate = asked.query.is_aggregate();
        if !is_aggregate && is_looked_up(&asked.query) {
            let (asked, memory) = (asked.clone(), self.memory.clone());
            let backing = self.broker.services.backing.clone();
            let read = move |backing: &dyn Backing, wanted: &Wanted| {
                // Rows that change all the time, or are too large, are left to a view.
                let found = read::at_one_moment(|| asked.look_up(backing)).flatten();
                let Some(found) = found else {
                    return Some(None);
                };
                let pace = || wanted.pace(None);
                let page = asked.page(pace, |visit| visit_looked_up(found, backing, visit));
                page.map(|read| Some(read.and_then(|read| hold(read, &memory))))
            };
            let threads = &self.queries;
            let found = threads.look_live(&self.raft, Work::Page, backing, read);
            if let Some(read) = found.await? {
                return read;
            }
        }
        let (asked, memory) = (asked.clone(), self.memory.clone());
        let work = match is_aggregate {
            true => Work::Aggregate,
            false => Work::Page,
        };
        let read = move |view: &StateView<'_>, wanted: &Wanted| {
            let pace = || wanted.pace(Some(view));
            let read = match is_aggregate {
                true => asked.aggregate(pace, view),
                false => asked.page(pace, |visit_row| {
                    let after = asked.cursor.key(&asked.query);
                    visit(&asked.query, after.as_ref(), view, visit_row);
                }),
            };
            read.map(|read| read.and_then(|read| hold(read, &memory)))
        };
        self.read_much(work, read).await?
    }
}

/// A query, and where in its answer.
struct Asked {
    query: Query,
    cursor: Cursor,
    items: usize,
}

/// What a query has found.
struct Read<J = Held> {
    page: Page<J>,
    /// Rows that were read for it.
    rows: usize,
}

/// Gives a page its place in memory. That is done before the turn to make pages ends, so that no more are without one.
fn hold(read: Read<String>, memory: &AnswerMemory) -> Result<Read, Refusal> {
    let Read { page, rows } = read;
    let page = Page {
        json: memory.try_hold(page.json)?,
        items: page.items,
        continuation: page.continuation,
    };
    Ok(Read { page, rows })
}

/// Shows rows until it is told not to go on.
type Visit<'v> = &'v mut dyn FnMut(&Key, &dyn Row) -> bool;

impl Asked {
    fn look_up(&self, backing: &dyn Backing) -> Option<LookedUp> {
        let after = self.cursor.key(&self.query);
        look_up(&self.query, after.as_ref(), backing)
    }

    /// A page of the rows that `visit` shows; `None` when nobody wants it.
    fn page(
        &self,
        pace: impl Fn() -> Pace,
        visit: impl FnOnce(Visit<'_>),
    ) -> Option<Result<Read<String>, Refusal>> {
        let mut page = RowPage::new(&self.query, &self.cursor, Budget::of(self.items));
        let (mut outcome, mut is_wanted) = (Ok(()), true);
        visit(&mut |key, row| {
            match pace() {
                Pace::GiveUp => is_wanted = false,
                Pace::EndPage if page.end() => return false,
                Pace::EndPage | Pace::On => match page.visit(key, row) {
                    Ok(goes_on) => return goes_on,
                    Err(error) => outcome = Err(error),
                },
            }
            false
        });
        let rows = page.rows();
        let read = outcome.map(|()| Read {
            page: page.finish(),
            rows,
        });
        is_wanted.then(|| read.map_err(Refusal::from))
    }

    /// What all rows come to; `None` when nobody wants it.
    fn aggregate(
        &self,
        pace: impl Fn() -> Pace,
        backing: &dyn Backing,
    ) -> Option<Result<Read<String>, Refusal>> {
        let mut aggregation = Aggregation::new(&self.query)?;
        let (mut outcome, mut is_wanted) = (Ok(()), true);
        visit(&self.query, None, backing, |_, row| {
            is_wanted = pace() != Pace::GiveUp;
            if is_wanted {
                outcome = aggregation.visit(row);
            }
            is_wanted && outcome.is_ok()
        });
        if !is_wanted {
            return None;
        }
        let rows = aggregation.rows();
        let page = outcome.and_then(|()| aggregation.finish(&self.cursor, Budget::of(self.items)));
        Some(page.map(|page| Read { page, rows }).map_err(Refusal::from))
    }
}

/// Items that a page may have.
fn items(header: Option<&str>) -> Result<usize, Refusal> {
    let Some(text) = header else {
        return Ok(USUAL_ITEMS);
    };
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // More digits than any machine's number has are more than the most.
    let number = text.parse().unwrap_or(MOST_ITEMS);
    match is_number && number > 0 {
        true => Ok(number.min(MOST_ITEMS)),
        false => {
            let text = format!("{MAX_ITEM_COUNT} is a number from 1 on");
            Err(Refusal::invalid(text))
        }
    }
}

/// The text of the query in a body.
fn text(body: &[u8]) -> Result<String, Refusal> {
    let body = json::parse(body).map_err(|error| Refusal::new(Code::FormatError, error))?;
    let query = match body {
        Json::Object(mut members) => members.remove("query"),
        _ => None,
    };
    match query {
        Some(Json::Text(query)) => Ok(query),
        _ => Err(Refusal::invalid("the body is {\"query\":\"…\"}")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::query_threads::tests::in_a_hurry;
    use super::super::twin_row::visit_whole;
    use super::*;
    use crate::base::proto::state::Identity;
    use crate::base::time::Millis;
    use crate::machine::hub::{rows_of, rows_of_used_twin};
    use crate::query::ROOTS;
    use crate::registry::IdentityId;
    use crate::twin::{EncodedSection, Section, request};

    type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

    /// 20 devices, `d00` to `d19`, each with the module `m`.
    fn fleet() -> Rows {
        let mut rows = Rows::new();
        for device in 0..20 {
            for id in [format!("d{device:02}"), format!("d{device:02}/m")] {
                let id = IdentityId::of_client_id(&id).expect("an id");
                let identity = Identity {
                    generation: 1,
                    ..Identity::default()
                };
                rows.extend(rows_of(&id, &identity));
            }
        }
        rows
    }

    fn asked(text: &str, token: Option<&str>, items: usize) -> Asked {
        let query = Query::parse(text).expect("a query");
        let cursor = Cursor::read(&query, token).expect("a token of ours");
        Asked {
            query,
            cursor,
            items,
        }
    }

    /// The ids of all pages, and how many pages there were.
    fn all(text: &str, read: impl Fn(Option<&str>) -> Read<String>) -> (Vec<String>, usize) {
        let (mut ids, mut pages, mut token) = (Vec::new(), 0, None::<String>);
        loop {
            let Read { page, .. } = read(token.as_deref());
            let Ok(Json::Array(items)) = json::parse(page.json.as_bytes()) else {
                panic!("{text}: {}", page.json);
            };
            ids.extend(items.into_iter().map(|item| match item {
                Json::Object(mut item) => match item.remove("deviceId") {
                    Some(Json::Text(id)) => id,
                    other => panic!("{text}: {other:?}"),
                },
                other => panic!("{text}: {other:?}"),
            }));
            pages += 1;
            token = page.continuation;
            if token.is_none() {
                return (ids, pages);
            }
        }
    }

    fn scanned(asked: &Asked, rows: &Rows, pace: impl Fn() -> Pace) -> Read<String> {
        let after = asked.cursor.key(&asked.query);
        let show = |show: Visit<'_>| visit(&asked.query, after.as_ref(), rows, show);
        let read = asked.page(pace, show).expect("it is wanted");
        read.expect("small rows")
    }

    #[test]
    fn a_page_that_takes_long_is_short_and_leads_on() {
        let rows = fleet();
        for (text, expected) in [
            ("SELECT deviceId FROM devices", 20),
            ("SELECT deviceId FROM devices.modules", 20),
            ("SELECT TOP 7 deviceId FROM devices", 7),
            ("SELECT deviceId FROM devices WHERE deviceId > 'd16'", 3),
        ] {
            let (ids, pages) = all(text, |token| {
                let wanted = in_a_hurry();
                let asked = asked(text, token, 100);
                let read = scanned(&asked, &rows, || wanted.pace(None));
                assert!(read.rows <= 1, "{text}");
                read
            });
            assert!(ids.is_sorted() && ids.len() == expected, "{text}: {ids:?}");
            assert!(pages >= expected, "{text}");
        }
        let nobody = asked("SELECT deviceId FROM devices", None, 100);
        let read = nobody.page(
            || Pace::GiveUp,
            |show| visit(&nobody.query, None, &rows, show),
        );
        assert!(read.is_none());
    }

    #[test]
    fn what_is_looked_up_is_what_a_view_shows() {
        let rows = fleet();
        for text in [
            "SELECT deviceId FROM devices WHERE deviceId = 'd07'",
            "SELECT * FROM devices WHERE deviceId IN ['d03', 'x', 'd01', 'd02']",
            "SELECT deviceId, connectionState FROM devices.modules WHERE deviceId IN ['d05', 'd04']",
            "SELECT deviceId FROM devices WHERE deviceId = 'd07' AND connectionState = 'Connected'",
        ] {
            let looked_up = all(text, |token| {
                let asked = asked(text, token, 1);
                assert!(is_looked_up(&asked.query));
                let found = asked.look_up(&rows).expect("small twins");
                let show = |show: Visit<'_>| visit_looked_up(found, &rows, show);
                let read = asked.page(|| Pace::On, show).expect("it is wanted");
                read.expect("small rows")
            });
            let scanned = all(text, |token| {
                scanned(&asked(text, token, 1), &rows, || Pace::On)
            });
            assert_eq!(looked_up, scanned, "{text}");
        }
        let ids = |count: usize| {
            let ids: Vec<String> = (0..count).map(|id| format!("'{id}'")).collect();
            let text = format!(
                "SELECT * FROM devices WHERE deviceId IN [{}]",
                ids.join(",")
            );
            is_looked_up(&asked(&text, None, 1).query)
        };
        assert!(ids(16) && !ids(17));
        assert!(!is_looked_up(
            &asked("SELECT * FROM devices", None, 1).query
        ));
    }

    fn section(json: &str) -> EncodedSection {
        let members = request::reported_patch(json.as_bytes()).expect("it breaks no rule");
        let section = Section::default().replaced(members, Millis(5_000), u64::MAX);
        EncodedSection::of(&section.expect("it is small"))
    }

    /// Whatever a query looks at, it finds it, and what it does not look at is not decoded.
    #[test]
    fn a_scan_reads_what_the_query_names() {
        let mut rows = Rows::new();
        for id in ["a", "b", "b/m"] {
            let identity = Identity {
                generation: 3,
                etag: 4,
                status_reason: Some("why".into()),
                status_updated_ms: 6_000,
                ..Identity::default()
            };
            let sections = [
                section(r#"{"site":"43"}"#),
                section(r#"{"mode":"eco"}"#),
                section(r#"{"on":true}"#),
            ];
            let id = IdentityId::of_client_id(id).expect("an id");
            rows.extend(rows_of_used_twin(&id, &identity, sections));
        }
        let below = [
            "tags.site",
            "properties.desired.mode",
            "properties.reported.on",
        ];
        for path in ROOTS.into_iter().chain(below) {
            for from in ["devices", "devices.modules"] {
                let texts = [
                    format!("SELECT {path} AS found FROM {from}"),
                    format!("SELECT * FROM {from} WHERE IS_DEFINED({path})"),
                    format!("SELECT * FROM {from}"),
                ];
                for text in texts {
                    let asked = asked(&text, None, 100);
                    let found = scanned(&asked, &rows, || Pace::On);
                    let show = |show: Visit<'_>| visit_whole(&asked.query, &rows, show);
                    let whole = asked.page(|| Pace::On, show).expect("it is wanted");
                    let whole = whole.expect("small rows");
                    assert_eq!(found.page.json, whole.page.json, "{text}");
                }
            }
        }
    }

    #[test]
    fn items_of_a_page() {
        for (header, expected) in [
            (None, 100),
            (Some("1"), 1),
            (Some("1000"), 1_000),
            (Some("1001"), 1_000),
            (Some("99999999999999999999999"), 1_000),
        ] {
            assert_eq!(items(header), Ok(expected), "{header:?}");
        }
        for header in ["", "0", "-1", "+1", "1.5", "x", " 1", "1e3"] {
            let refused = items(Some(header)).expect_err(header);
            assert_eq!(refused.code, Code::ArgumentInvalid);
        }
    }

    #[test]
    fn the_body_of_a_query() {
        let code = |body: &[u8]| text(body).expect_err("refused").code;
        assert_eq!(text(b"{\"query\":\"x\",\"y\":1}").as_deref(), Ok("x"));
        for wrong in [
            &b"[]"[..],
            b"{}",
            b"{\"query\":1}",
            b"{\"Query\":\"x\"}",
            b"null",
        ] {
            assert_eq!(code(wrong), Code::ArgumentInvalid);
        }
        for wrong in [&b""[..], b"{", b"\xff", b"{\"query\":\"\\ud800\"}"] {
            assert_eq!(code(wrong), Code::FormatError);
        }
    }
}
