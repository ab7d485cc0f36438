//! Routes of the topics that a connection has published to last.

use std::ops::Deref;

use rustc_hash::FxHashMap;

use crate::base::ids::SessionId;
use crate::base::limits;
use crate::router::{Route, Router};

/// Bytes of topic names and routes that one connection keeps. Publishers with more topics find the others in the
/// node's own cache, which costs a lock.
const KEPT_BYTES: usize = 64 << 10;

/// Routes that take more than this with their topic are not kept: next to their fan-out, the lock of the node's own
/// cache costs nothing, and thousands of connections would keep as many outdated ones.
const KEPT_ROUTE_BYTES: usize = 2 << 10;

/// What a topic takes besides its name and its route, about.
const ENTRY_BYTES: usize = 64;

/// Small routes by topic name, [`limits::CACHED_ROUTES`] and [`KEPT_BYTES`] at most.
///
/// Each look-up costs one hash. The route is borrowed from the cache, so whoever judges a message by it can deliver the
/// message by the same route.
#[derive(Debug, Default)]
pub(super) struct RouteCache {
    /// Positions in `routes`. The hash is fast and not seeded: topics that a client makes collide are few and cost its
    /// own messages some microseconds.
    topics: FxHashMap<Box<str>, usize>,
    /// `None` where the route has become large.
    routes: Vec<Option<Route>>,
    bytes: usize,
}

/// The route of a message.
pub(super) enum CurrentRoute<'a> {
    /// The cache keeps it.
    Kept(&'a Route),
    /// It is too large for that.
    Large(Route),
}

impl Deref for CurrentRoute<'_> {
    type Target = Route;

    fn deref(&self) -> &Route {
        match self {
            CurrentRoute::Kept(route) => route,
            CurrentRoute::Large(route) => route,
        }
    }
}

impl RouteCache {
    /// Where messages of `publisher` to `topic` go now; what finding out costs is added to `work`. A cache is for one
    /// publisher only.
    pub(super) fn current(
        &mut self,
        router: &Router,
        topic: &str,
        publisher: Option<SessionId>,
        work: &mut usize,
    ) -> CurrentRoute<'_> {
        let Some(at) = self.topics.get(topic).copied() else {
            let route = router.route(topic, publisher);
            *work += route.look_up_work();
            return match is_small(topic, &route) {
                true => CurrentRoute::Kept(self.insert(topic, route)),
                false => CurrentRoute::Large(route),
            };
        };
        let is_current = match &self.routes[at] {
            Some(route) => router.is_current(route),
            None => false,
        };
        if !is_current {
            let route = router.route(topic, publisher);
            *work += route.look_up_work();
            self.bytes -= self.routes[at].take().map_or(0, |old| old.bytes());
            if !is_small(topic, &route) {
                return CurrentRoute::Large(route);
            }
            self.bytes += route.bytes();
            self.routes[at] = Some(route);
        }
        CurrentRoute::Kept(self.routes[at].as_ref().expect("it is current"))
    }

    /// Bytes of the cache, what routes lead to left out.
    pub(super) fn memory(&self) -> usize {
        self.bytes
    }

    fn insert(&mut self, topic: &str, route: Route) -> &Route {
        let added = topic.len() + ENTRY_BYTES + route.bytes();
        if self.routes.len() >= limits::CACHED_ROUTES || self.bytes + added > KEPT_BYTES {
            *self = RouteCache::default();
        }
        self.bytes += added;
        let at = self.routes.len();
        self.topics.insert(topic.into(), at);
        self.routes.push(None);
        self.routes[at].insert(route)
    }
}

fn is_small(topic: &str, route: &Route) -> bool {
    topic.len() + route.bytes() <= KEPT_ROUTE_BYTES
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::base::ids::NodeId;
    use crate::forward::outbox::Outboxes;
    use crate::machine::subscriptions::{Queueing, SubscriptionIndex};

    #[test]
    fn the_cache_is_bounded_and_every_topic_has_its_route() {
        let router = Router::new(NodeId(1), Arc::default(), Arc::new(Outboxes::default()));
        let mut cache = RouteCache::default();
        let mut topics = 0;
        for topic in 0..3 * limits::CACHED_ROUTES {
            assert!(
                cache
                    .current(&router, &topic.to_string(), None, &mut 0)
                    .is_empty()
            );
            assert!(cache.routes.len() <= limits::CACHED_ROUTES && cache.bytes <= KEPT_BYTES);
            topics = topics.max(cache.routes.len());
        }
        assert!(topics > 100, "it keeps what most publishers need: {topics}");
        let known = cache.routes.len();
        cache.current(
            &router,
            &(3 * limits::CACHED_ROUTES - 1).to_string(),
            None,
            &mut 0,
        );
        assert_eq!(
            (cache.routes.len(), cache.topics.len()),
            (known, known),
            "known"
        );
        let long = "t".repeat(KEPT_ROUTE_BYTES / 2);
        for end in 0..200 {
            cache.current(&router, &format!("{long}{end}"), None, &mut 0);
            assert!(cache.bytes <= KEPT_BYTES);
        }
    }

    #[test]
    fn large_routes_are_not_kept() {
        let index: Arc<SubscriptionIndex> = Arc::default();
        let router = Router::new(NodeId(1), index.clone(), Arc::new(Outboxes::default()));
        let mut cache = RouteCache::default();
        let mut filters = Vec::new();
        for count in 0..200 {
            filters.push(format!("$share/{count}/t"));
            let all: Vec<&str> = filters.iter().map(String::as_str).collect();
            index.put(SessionId(1), None, Queueing::default(), &all);
            assert!(!cache.current(&router, "t", None, &mut 0).is_empty());
            assert!(cache.bytes <= KEPT_ROUTE_BYTES + ENTRY_BYTES + 1);
        }
        assert!(matches!(
            cache.current(&router, "t", None, &mut 0),
            CurrentRoute::Large(_)
        ));
    }
}
