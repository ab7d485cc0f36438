//! Lists of tables in the configuration (`[[listeners]]`): the keys of one table, defined once as those of a section
//! are.

use std::ops::RangeInclusive;

use toml::de::DeValue;

use super::setting::{Input, SettingError, items};

/// One key of a table, as the loader and the reference page see it.
pub struct TableKey<T> {
    /// Its name in the table.
    pub name: &'static str,
    /// What it means and when to change it.
    pub doc: &'static str,
    /// Unit of a number, empty for everything else.
    pub unit: &'static str,
    /// The kind of value.
    pub kind: &'static str,
    /// Smallest and largest number that is accepted.
    pub range: Option<RangeInclusive<u64>>,
    pub(super) set: fn(&mut T, &Input<'_>) -> Result<(), SettingError>,
    pub(super) show: fn(&T) -> String,
}

/// A table that [`table!`] has defined.
pub trait Table: Default + Sized + 'static {
    /// What one looks like, for error messages.
    const FORM: &'static str;

    /// Every key, in the order of the reference page.
    fn keys() -> Vec<TableKey<Self>>;
}

/// Reads a list of tables.
///
/// # Errors
/// What is wrong with the first table that can't be read.
pub(super) fn read<T: Table>(input: &Input<'_>) -> Result<Vec<T>, SettingError> {
    items(input, |value| {
        let DeValue::Table(table) = value else {
            return Err(SettingError::unexpected(T::FORM, &Input::Toml(value)));
        };
        let keys = T::keys();
        let mut read = T::default();
        for (name, value) in table.iter() {
            let name = name.get_ref().as_ref();
            let Some(key) = keys.iter().find(|key| key.name == name) else {
                let found = format!("the key {name:?}");
                let expected = T::FORM;
                return Err(SettingError::Unexpected { expected, found });
            };
            let set = (key.set)(&mut read, &Input::Toml(value.get_ref()));
            set.map_err(|error| SettingError::Inside {
                key: key.name,
                error: Box::new(error),
            })?;
        }
        Ok(read)
    })
}

/// A list of tables as it would be written in TOML: what differs from the defaults.
pub(super) fn show<T: Table>(tables: &[T]) -> String {
    let (default, keys) = (T::default(), T::keys());
    let tables = tables.iter().map(|table| {
        let shown = keys.iter().filter_map(|key| {
            let value = (key.show)(table);
            (value != (key.show)(&default)).then(|| format!("{} = {value}", key.name))
        });
        format!("{{ {} }}", shown.collect::<Vec<_>>().join(", "))
    });
    format!("[{}]", tables.collect::<Vec<_>>().join(", "))
}

macro_rules! optional {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
}

/// Defines a table: its struct, its defaults and its keys.
macro_rules! table {
    (
        $(#[doc = $table_doc:literal])+
        $struct:ident, $form:literal, {
            $(
                $(#[doc = $doc:literal])+
                $key:ident: $type:ty = $default:expr, $unit:literal $(, $range:expr)?;
            )+
        }
    ) => {
        $(#[doc = $table_doc])+
        #[derive(Clone, Debug, PartialEq, serde::Serialize)]
        pub struct $struct {
            $($(#[doc = $doc])+ pub $key: $type,)+
        }

        impl Default for $struct {
            fn default() -> Self {
                $struct { $($key: $default,)+ }
            }
        }

        impl $crate::config::table::Table for $struct {
            const FORM: &'static str = $form;

            fn keys() -> Vec<$crate::config::table::TableKey<Self>> {
                use $crate::config::setting::{Setting, in_range};
                use $crate::config::table::optional;
                vec![$(
                    $crate::config::table::TableKey {
                        name: stringify!($key),
                        doc: concat!($($doc, "\n"),+),
                        unit: $unit,
                        kind: <$type as Setting>::KIND,
                        range: optional!($($range)?),
                        set: |table, input| {
                            let range: Option<std::ops::RangeInclusive<u64>> = optional!($($range)?);
                            table.$key = in_range(<$type as Setting>::read(input)?, range.as_ref())?;
                            Ok(())
                        },
                        show: |table| Setting::show(&table.$key),
                    },
                )+]
            }
        }

        impl $crate::config::setting::Setting for Vec<$struct> {
            const KIND: &'static str = "list of tables";

            fn read(
                input: &$crate::config::setting::Input<'_>,
            ) -> Result<Self, $crate::config::setting::SettingError> {
                $crate::config::table::read(input)
            }

            fn show(&self) -> String {
                $crate::config::table::show(self)
            }
        }
    };
}

pub(super) use {optional, table};
