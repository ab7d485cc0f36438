//! The addresses of names, remembered: a name server that does not answer must not keep nodes apart that live. A
//! connection proves who is there, so an address that another has taken over harms nobody.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

/// How long a name's new addresses are waited for where former ones are known.
const RESOLVE_TIMEOUT: Duration = Duration::from_millis(200);

/// Names that are remembered: those of members, and few others.
const MAX_NAMES: usize = 256;

type Name = (String, u16);

/// What is known of a name.
#[derive(Default)]
struct Known {
    /// The addresses that it had last.
    last: Vec<SocketAddr>,
    /// The look-up under way, of which there is one at a time: each takes a thread for as long as the name server is
    /// silent.
    looking: Option<watch::Receiver<Option<Vec<SocketAddr>>>>,
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

    /// The addresses that the name had last, and the look-up under way, which is begun if there is none.
    fn look_up<F>(
        &self,
        name: Name,
        look: impl FnOnce(String, u16) -> F,
    ) -> (Vec<SocketAddr>, watch::Receiver<Option<Vec<SocketAddr>>>)
    where
        F: Future<Output = Vec<SocketAddr>> + Send + 'static,
    {
        let mut names = self.0.lock();
        if names.len() >= MAX_NAMES && !names.contains_key(&name) {
            // Those that are being looked up are needed; the others are found again.
            names.retain(|_, known| known.looking.is_some());
        }
        let known = names.entry(name.clone()).or_default();
        if let Some(looking) = &known.looking {
            return (known.last.clone(), looking.clone());
        }
        let (tell, looking) = watch::channel(None);
        known.looking = Some(looking.clone());
        let last = known.last.clone();
        drop(names);
        let looked_up = look(name.0.clone(), name.1);
        let names = self.clone();
        tokio::spawn(async move {
            let found = looked_up.await;
            if let Some(known) = names.0.lock().get_mut(&name) {
                known.looking = None;
                if !found.is_empty() {
                    known.last.clone_from(&found);
                }
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

    #[tokio::test]
    async fn a_name_server_that_is_silent_or_refuses_keeps_nobody_apart() {
        let names = Names::default();
        let found = |last| move |_, _| async move { vec![address(last)] };
        let refused = |_, _| async { Vec::new() };
        let silent = |_, _| std::future::pending::<Vec<SocketAddr>>();
        assert_eq!(names.resolve_by("a", 7883, refused).await, None);
        assert_eq!(
            names.resolve_by("a", 7883, found(1)).await,
            Some(vec![address(1)])
        );
        assert_eq!(
            names.resolve_by("a", 7883, found(2)).await,
            Some(vec![address(2)])
        );
        for _ in 0..2 {
            let known = names.resolve_by("a", 7883, refused).await;
            assert_eq!(known, Some(vec![address(2)]));
        }
        let known = names.resolve_by("a", 7883, silent).await;
        assert_eq!(known, Some(vec![address(2)]));
    }

    #[tokio::test]
    async fn one_look_up_of_a_name_is_under_way_at_a_time_and_its_late_answer_counts() {
        let names = Names::default();
        let first = |_, _| async { vec![address(1)] };
        names.resolve_by("a", 7883, first).await;
        let (answer, answered) = tokio::sync::oneshot::channel();
        let late = |_, _| async move { answered.await.unwrap_or_default() };
        let known = names.resolve_by("a", 7883, late).await;
        assert_eq!(known, Some(vec![address(1)]));
        let another = |_, _| async { panic!("one is under way") };
        let known = names.resolve_by("a", 7883, another).await;
        assert_eq!(known, Some(vec![address(1)]));
        answer.send(vec![address(2)]).expect("it is waited for");
        while names.0.lock().values().any(|known| known.looking.is_some()) {
            tokio::task::yield_now().await;
        }
        let silent = |_, _| std::future::pending::<Vec<SocketAddr>>();
        let known = names.resolve_by("a", 7883, silent).await;
        assert_eq!(known, Some(vec![address(2)]));
    }

    #[tokio::test]
    async fn an_address_needs_no_look_up_and_names_are_bounded() {
        let names = Names::default();
        let never = |_, _| async { panic!("it is an address") };
        let found = names.resolve_by("::1", 1, never).await;
        assert_eq!(found, Some(vec!["[::1]:1".parse().expect("an address")]));
        for number in 0..2 * MAX_NAMES {
            let found = |_, _| async { vec![address(1)] };
            let name = format!("n{number}");
            assert!(names.resolve_by(&name, 7883, found).await.is_some());
        }
        assert!(names.0.lock().len() <= MAX_NAMES);
    }
}
