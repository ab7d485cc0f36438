//! What the routes get their answers from.

use std::sync::Arc;

use axum::extract::FromRef;

use super::admin::Admin;
use super::event_subscriptions::EventSubscriptions;
use super::events::Events;
use super::health::Readiness;
use super::post::Currency;
use super::rules::RulesAdmin;
use super::sessions::Sessions;
use super::token_routes::Tokens;
use super::users::Users;
use crate::telemetry::metrics::Metrics;

/// What the routes get their answers from.
#[derive(Clone)]
pub struct Endpoints {
    /// Conditions of readiness.
    pub readiness: Arc<dyn Readiness>,
    /// Administration of the cluster.
    pub admin: Arc<dyn Admin>,
    /// Sessions and retained messages.
    pub sessions: Arc<dyn Sessions>,
    /// Users and bans.
    pub users: Arc<dyn Users>,
    /// What principals may do.
    pub rules: Arc<dyn RulesAdmin>,
    /// Events.
    pub events: Arc<dyn Events>,
    /// Who is to get them.
    pub event_subscriptions: Arc<dyn EventSubscriptions>,
    /// Tokens for this port.
    pub tokens: Arc<dyn Tokens>,
    /// Whether the node knows who may ask.
    pub currency: Arc<dyn Currency>,
    /// All metrics of the node.
    pub metrics: Arc<Metrics>,
}

macro_rules! parts {
    ($($field:ident: $type:ty,)+) => {$(
        impl FromRef<Endpoints> for $type {
            fn from_ref(endpoints: &Endpoints) -> Self {
                endpoints.$field.clone()
            }
        }
    )+};
}

parts! {
    readiness: Arc<dyn Readiness>,
    admin: Arc<dyn Admin>,
    sessions: Arc<dyn Sessions>,
    users: Arc<dyn Users>,
    rules: Arc<dyn RulesAdmin>,
    events: Arc<dyn Events>,
    event_subscriptions: Arc<dyn EventSubscriptions>,
    tokens: Arc<dyn Tokens>,
    metrics: Arc<Metrics>,
}
