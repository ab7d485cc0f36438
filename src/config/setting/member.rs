//! The voters that a cluster starts with.

use serde::Serialize;
use toml::de::DeValue;

use super::address::Address;
use super::read::{Input, Setting, SettingError, items};

/// One voter of the cluster: its number and where the other nodes reach it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Member {
    /// The member's `node.id`.
    pub id: u64,
    /// The member's `cluster.advertise`.
    pub address: Address,
}

impl Member {
    fn from_toml(value: &DeValue<'_>) -> Result<Member, SettingError> {
        let expected = "{ id = 1, address = \"host:port\" }";
        let DeValue::Table(table) = value else {
            return Err(SettingError::unexpected(expected, &Input::Toml(value)));
        };
        let (mut id, mut address) = (None, None);
        for (key, value) in table.iter() {
            let input = Input::Toml(value.get_ref());
            match key.get_ref().as_ref() {
                "id" => id = Some(u64::read(&input)?),
                "address" => address = Some(Address::read(&input)?),
                other => {
                    let found = format!("the key {other:?}");
                    return Err(SettingError::Unexpected { expected, found });
                }
            }
        }
        match (id, address) {
            (Some(id), Some(address)) => Ok(Member { id, address }),
            _ => Err(SettingError::Incomplete { expected }),
        }
    }

    fn from_text(text: &str) -> Result<Member, SettingError> {
        let (id, address) = text
            .split_once('=')
            .ok_or_else(|| SettingError::unexpected("id=host:port", &Input::Text(text)))?;
        Ok(Member {
            id: u64::read(&Input::Text(id))?,
            address: address.trim().parse()?,
        })
    }
}

impl Setting for Vec<Member> {
    const KIND: &'static str =
        "list of { id, address }; in the environment and on the command line also id=host:port,…";

    fn read(input: &Input<'_>) -> Result<Self, SettingError> {
        match input {
            Input::Text(text) if !text.trim_start().starts_with('[') => text
                .split(',')
                .map(str::trim)
                .filter(|part| !part.is_empty())
                .map(Member::from_text)
                .collect(),
            other => items(other, Member::from_toml),
        }
    }

    fn show(&self) -> String {
        let items: Vec<_> = self
            .iter()
            .map(|member| {
                format!(
                    "{{ id = {}, address = {} }}",
                    member.id,
                    member.address.show()
                )
            })
            .collect();
        format!("[{}]", items.join(", "))
    }
}
