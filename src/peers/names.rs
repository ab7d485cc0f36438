//! The addresses of names, remembered: a name server that does not answer must not keep nodes apart that live. A
//! connection proves who is there, so an address that another has taken over harms nobody.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

/// How long a name's new addresses are waited for where former ones are known.
const RESOLVE_TIMEOUT: Duration = Duration::from_millis(200);

/// Names that are remembered: those of members, and few others.
const MAX_NAMES: usize = 256;

type Name = (String, u16);

/// How long a look-up is waited for before another one is begun.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(10);

/// What a look-up has found; `None`: nothing yet.
type Found = watch::Receiver<Option<Vec<SocketAddr>>>;

/// What is known of a name.
#[derive(Default)]
struct Known {
    /// The addresses at which somebody has proved to be.
    last: Vec<SocketAddr>,
    /// Those that the last look-up has found, maybe when nobody waited for it any more.
    found: Vec<SocketAddr>,
    /// The look-up under way, and since when. There is one at a time: each takes a thread for as long as the name
    /// server is silent.
    looking: Option<(Found, Instant)>,
}

impl Known {
    /// Where nodes are to be looked for without waiting for an answer: nowhere, if none was ever there.
    fn all(&self) -> Vec<SocketAddr> {
        match self.last.is_empty() {
            true => Vec::new(),
            false => [&*self.found, &*self.last].concat(),
        }
    }
}

/// Names and their addresses.
#[derive(Clone, Default)]
pub(super) struct Names(Arc<Mutex<HashMap<Name, Known>>>);

impl std::fmt::Debug for Names {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Names")
    }
}

/// What is remembered is no setting: in what compares settings, all are alike.
impl PartialEq for Names {
    fn eq(&self, _other: &Names) -> bool {
        true
    }
}

impl Eq for Names {}

impl Names {
    /// The addresses of a name, those that it had last if it cannot be resolved now; `None`: it never had any.
    pub(super) async fn resolve(&self, host: &str, port: u16) -> Option<Vec<SocketAddr>> {
        self.resolve_by(host, port, |host, port| async move {
            let found = tokio::net::lookup_host((host, port)).await;
            found.map(Iterator::collect).unwrap_or_default()
        })
        .await
    }

    async fn resolve_by<F>(
        &self,
        host: &str,
        port: u16,
        look: impl FnOnce(String, u16) -> F,
    ) -> Option<Vec<SocketAddr>>
    where
        F: Future<Output = Vec<SocketAddr>> + Send + 'static,
    {
        if let Ok(ip) = host.parse() {
            return Some(vec![SocketAddr::new(ip, port)]);
        }
        let (last, mut looking) = self.look_up((host.to_owned(), port), look);
        let found = async {
            let found = looking.wait_for(Option::is_some).await.ok()?;
            found.clone().filter(|found| !found.is_empty())
        };
        if last.is_empty() {
            return found.await;
        }
        let found = tokio::time::timeout(RESOLVE_TIMEOUT, found).await;
        Some(found.ok().flatten().unwrap_or(last))
    }

    /// Somebody has proved to be at one of these addresses of the name.
    pub(super) fn remember(&self, host: &str, port: u16, addresses: &[SocketAddr]) {
        if let Some(known) = self.0.lock().get_mut(&(host.to_owned(), port)) {
            known.last = addresses.to_vec();
        }
    }

    /// The addresses that the name had last, and the look-up under way, which is begun if there is none.
    fn look_up<F>(
        &self,
        name: Name,
        look: impl FnOnce(String, u16) -> F,
    ) -> (Vec<SocketAddr>, Found)
    where
        F: Future<Output = Vec<SocketAddr>> + Send + 'static,
    {
        let mut names = self.0.lock();
        if names.len() >= MAX_NAMES && !names.contains_key(&name) {
            // Where no node was ever goes first.
            names.retain(|_, known| !known.last.is_empty());
            if names.len() >= MAX_NAMES {
                names.clear();
            }
        }
        let known = names.entry(name.clone()).or_default();
        if let Some((looking, since)) = &known.looking
            && since.elapsed() < LOOK_UP_TIMEOUT
            && looking.has_changed().is_ok()
        {
            return (known.all(), looking.clone());
        }
        let (tell, looking) = watch::channel(None);
        known.looking = Some((looking.clone(), Instant::now()));
        let last = known.all();
        drop(names);
        let looked_up = look(name.0.clone(), name.1);
        let names = self.clone();
        tokio::spawn(async move {
            let found = looked_up.await;
            if let Some(known) = names.0.lock().get_mut(&name) {
                known.found.clone_from(&found);
            }
            tell.send_replace(Some(found));
        });
        (last, looking)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 7883))
    }

    /// What a name is resolved to when the look-up comes to `found`.
    async fn resolved(names: &Names, found: Vec<SocketAddr>) -> Option<Vec<SocketAddr>> {
        names.resolve_by("a", 7883, |_, _| async { found }).await
    }

    fn silent(_: String, _: u16) -> std::future::Pending<Vec<SocketAddr>> {
        std::future::pending()
    }

    #[tokio::test]
    async fn a_name_server_that_refuses_lies_or_is_silent_keeps_nobody_apart() {
        let names = Names::default();
        assert_eq!(resolved(&names, Vec::new()).await, None);
        let first = resolved(&names, vec![address(1)]).await;
        assert_eq!(first, Some(vec![address(1)]));
        names.remember("a", 7883, &[address(1)]);
        // Nobody proves to be there.
        let wrong = resolved(&names, vec![address(2)]).await;
        assert_eq!(wrong, Some(vec![address(2)]));
        let known = resolved(&names, Vec::new()).await;
        assert_eq!(known, Some(vec![address(2), address(1)]));
        let known = names.resolve_by("a", 7883, silent).await;
        assert_eq!(known, Some(vec![address(1)]));
    }

    #[tokio::test]
    async fn one_look_up_of_a_name_is_under_way_at_a_time_and_its_late_answer_is_taken() {
        let names = Names::default();
        resolved(&names, vec![address(1)]).await;
        names.remember("a", 7883, &[address(1)]);
        let (answer, answered) = tokio::sync::oneshot::channel();
        let late = |_, _| async move { answered.await.unwrap_or_default() };
        let known = names.resolve_by("a", 7883, late).await;
        assert_eq!(known, Some(vec![address(1), address(1)]));
        answer.send(vec![address(2)]).expect("it is waited for");
        let another = |_, _| async { panic!("one is under way") };
        let known = names.resolve_by("a", 7883, another).await;
        assert_eq!(known, Some(vec![address(2)]));
        let known = names.resolve_by("a", 7883, silent).await;
        assert_eq!(known, Some(vec![address(2), address(1)]));
    }

    #[tokio::test]
    async fn an_address_needs_no_look_up_and_names_are_bounded() {
        let names = Names::default();
        let never = |_, _| async { panic!("it is an address") };
        let found = names.resolve_by("::1", 1, never).await;
        assert_eq!(found, Some(vec!["[::1]:1".parse().expect("an address")]));
        names
            .resolve_by("a", 7883, |_, _| async { vec![address(1)] })
            .await;
        names.remember("a", 7883, &[address(1)]);
        for number in 0..2 * MAX_NAMES {
            let found = |_, _| async { vec![address(1)] };
            let name = format!("n{number}");
            assert!(names.resolve_by(&name, 7883, found).await.is_some());
        }
        assert!(names.0.lock().len() <= MAX_NAMES);
        let known = names.resolve_by("a", 7883, silent).await;
        let found = Some(vec![address(1), address(1)]);
        assert_eq!(known, found, "where somebody was is known");
    }
}
