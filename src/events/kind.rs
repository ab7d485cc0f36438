//! The types of events.

use crate::base::proto::state;

/// What an event says. The numbers are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// A session has got a connection.
    Connected = 1,
    /// That connection has ended.
    Disconnected = 2,
    /// A client was made or changed.
    ClientUpdated = 3,
    /// A client was deleted.
    ClientDeleted = 4,
    /// Something of the hub has changed.
    Hub = 5,
}

/// What has happened in the hub. The numbers are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum HubOperation {
    /// A twin was patched.
    UpdateTwin = 1,
    /// A twin was replaced.
    ReplaceTwin = 2,
    /// A device or a module was made.
    CreateDeviceIdentity = 3,
    /// A device or a module was deleted.
    DeleteDeviceIdentity = 4,
}

/// What types of the hub begin with.
const HUB: &str = "Quorumq.Hub.";

/// The types that an event subscription gets which names none.
pub const CLIENT_TYPES: [&str; 4] = [
    "Microsoft.EventGrid.MQTTClientSessionConnected",
    "Microsoft.EventGrid.MQTTClientSessionDisconnected",
    "Microsoft.EventGrid.MQTTClientCreatedOrUpdated",
    "Microsoft.EventGrid.MQTTClientDeleted",
];

/// The types that are told only to who asks for them.
pub const HUB_TYPES: [&str; 4] = [
    "Quorumq.Hub.updateTwin",
    "Quorumq.Hub.replaceTwin",
    "Quorumq.Hub.createDeviceIdentity",
    "Quorumq.Hub.deleteDeviceIdentity",
];

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 5] = [
        Kind::Connected,
        Kind::Disconnected,
        Kind::ClientUpdated,
        Kind::ClientDeleted,
        Kind::Hub,
    ];

    /// The kind of an event; `None` when a newer version has written it.
    pub fn of(event: &state::Event) -> Option<Kind> {
        Kind::ALL
            .into_iter()
            .find(|kind| *kind as u32 == event.kind)
    }
}

impl HubOperation {
    /// All of them.
    pub const ALL: [HubOperation; 4] = [
        HubOperation::UpdateTwin,
        HubOperation::ReplaceTwin,
        HubOperation::CreateDeviceIdentity,
        HubOperation::DeleteDeviceIdentity,
    ];

    /// The operation of an event of the hub.
    pub fn of(event: &state::Event) -> Option<HubOperation> {
        HubOperation::ALL
            .into_iter()
            .find(|operation| *operation as u32 == event.operation)
    }

    /// Its name in topics and attributes.
    pub fn as_str(self) -> &'static str {
        let event_type = HUB_TYPES[self as usize - 1];
        event_type.strip_prefix(HUB).unwrap_or(event_type)
    }

    /// The schema of what such an event says.
    pub fn message_schema(self) -> &'static str {
        match self {
            HubOperation::UpdateTwin | HubOperation::ReplaceTwin => "twinChangeNotification",
            HubOperation::CreateDeviceIdentity | HubOperation::DeleteDeviceIdentity => {
                "deviceLifecycleNotification"
            }
        }
    }
}

/// The type of an event in full; `None` when a newer version has written it.
pub fn event_type(event: &state::Event) -> Option<&'static str> {
    match Kind::of(event)? {
        Kind::Hub => Some(HUB_TYPES[HubOperation::of(event)? as usize - 1]),
        kind => CLIENT_TYPES.get(kind as usize - 1).copied(),
    }
}

/// Whether an event subscription asks for events of the hub.
pub fn asks_for_hub(options: &state::EventSubscriptionOptions) -> bool {
    let is_hub = |event_type: &String| event_type.starts_with(HUB);
    options.types.iter().any(is_hub)
}

/// Whether a type is one that there is.
pub fn is_type(text: &str) -> bool {
    CLIENT_TYPES.contains(&text) || HUB_TYPES.contains(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_has_a_type() {
        let mut types = Vec::new();
        for kind in [
            Kind::Connected,
            Kind::Disconnected,
            Kind::ClientUpdated,
            Kind::ClientDeleted,
        ] {
            let event = state::Event {
                kind: kind as u32,
                ..Default::default()
            };
            types.extend(event_type(&event));
        }
        assert_eq!(types, CLIENT_TYPES);
        let mut operations = Vec::new();
        for operation in HubOperation::ALL {
            let event = state::Event {
                kind: Kind::Hub as u32,
                operation: operation as u32,
                ..Default::default()
            };
            let found = event_type(&event).expect("a type");
            assert_eq!(found, format!("Quorumq.Hub.{}", operation.as_str()));
            operations.push(found);
        }
        assert_eq!(operations, HUB_TYPES);
        assert_eq!(event_type(&state::Event::default()), None);
        let newer = state::Event {
            kind: 5,
            operation: 9,
            ..Default::default()
        };
        assert_eq!(event_type(&newer), None);
        assert!(is_type(CLIENT_TYPES[0]) && is_type(HUB_TYPES[3]) && !is_type(""));
    }
}
