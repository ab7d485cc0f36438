//! Routes of the topics that a connection has published to last.

use rustc_hash::FxHashMap;

use crate::base::ids::SessionId;
use crate::base::limits;
use crate::router::{Route, Router};

/// A route with its place in the map of topics, bytes.
const ROUTE_BYTES: usize = size_of::<Route>() + size_of::<(Box<str>, usize)>() + 8;

/// Routes by topic name: [`limits::CACHED_ROUTES`] at most, with [`limits::CACHED_ROUTE_BYTES`] of names.
///
/// Each look-up costs one hash. The route is borrowed from the cache, so whoever judges a message by it can deliver the
/// message by the same route.
#[derive(Debug, Default)]
pub(super) struct RouteCache {
    /// Positions in `routes`.
    topics: FxHashMap<Box<str>, usize>,
    routes: Vec<Route>,
    /// Bytes of the topics.
    topic_bytes: usize,
}

impl RouteCache {
    /// Where messages of `publisher` to `topic` go now. A cache is for one publisher only.
    pub(super) fn current(
        &mut self,
        router: &Router,
        topic: &str,
        publisher: Option<SessionId>,
    ) -> &Route {
        let at = match self.topics.get(topic) {
            Some(at) => *at,
            None => return self.insert(topic, router.route(topic, publisher)),
        };
        let route = &mut self.routes[at];
        if !router.is_current(route) {
            *route = router.route(topic, publisher);
        }
        route
    }

    /// Bytes of the cache, what routes lead to left out.
    pub(super) fn memory(&self) -> usize {
        self.topic_bytes + self.routes.len() * ROUTE_BYTES
    }

    fn insert(&mut self, topic: &str, route: Route) -> &Route {
        let is_full = self.topic_bytes + topic.len() > limits::CACHED_ROUTE_BYTES
            || self.routes.len() >= limits::CACHED_ROUTES;
        if is_full {
            self.topics.clear();
            self.routes.clear();
            self.topic_bytes = 0;
        }
        self.topic_bytes += topic.len();
        let at = self.routes.len();
        self.topics.insert(topic.into(), at);
        self.routes.push(route);
        &self.routes[at]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::base::ids::NodeId;
    use crate::forward::outbox::Outboxes;

    #[test]
    fn the_cache_is_bounded_and_every_topic_has_its_route() {
        let router = Router::new(NodeId(1), Arc::default(), Arc::new(Outboxes::default()));
        let mut cache = RouteCache::default();
        for topic in 0..limits::CACHED_ROUTES + 2 {
            assert!(cache.current(&router, &topic.to_string(), None).is_empty());
        }
        assert_eq!(cache.routes.len(), 2);
        cache.current(&router, &limits::CACHED_ROUTES.to_string(), None);
        assert_eq!((cache.routes.len(), cache.topics.len()), (2, 2), "known");
    }
}
