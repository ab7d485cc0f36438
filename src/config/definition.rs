//! What makes the [`Config`](super::Config) tree of the lists of its keys, in [`super::keys`] and in the files of
//! sections that have one of their own.

/// One section: its struct, its defaults, its keys.
macro_rules! section {
    (
        $(#[doc = $section_doc:literal])+
        $section:ident: $struct:ident {
            $(
                $(#[doc = $doc:literal])+
                $key:ident: $type:ty = $default:expr, $unit:literal $(, $range:expr)?;
            )+
        }
    ) => {
        $(#[doc = $section_doc])+
        #[derive(Clone, Debug, PartialEq, serde::Serialize)]
        pub struct $struct {
            $($(#[doc = $doc])+ pub $key: $type,)+
        }

        impl Default for $struct {
            fn default() -> Self {
                $struct { $($key: $default,)+ }
            }
        }

        impl $struct {
            /// Every key, in the order of the reference page.
            pub(in crate::config) fn keys() -> Vec<$crate::config::section::SectionKey<Self>> {
                use $crate::config::setting::{Setting, in_range};
                use $crate::config::table::optional;
                vec![$(
                    $crate::config::section::SectionKey {
                        name: concat!(stringify!($section), ".", stringify!($key)),
                        doc: concat!($($doc, "\n"),+),
                        unit: $unit,
                        kind: <$type as Setting>::KIND,
                        range: optional!($($range)?),
                        set: |section, input| {
                            let range: Option<std::ops::RangeInclusive<u64>> = optional!($($range)?);
                            section.$key = in_range(<$type as Setting>::read(input)?, range.as_ref())?;
                            Ok(())
                        },
                        show: |section| Setting::show(&section.$key),
                    },
                )+]
            }
        }
    };
}

/// The tree: sections that are defined elsewhere by [`section!`], and those that are defined here, which come first.
macro_rules! config {
    (
        elsewhere { $($(#[doc = $other_doc:literal])+ $other:ident: $other_struct:ident;)+ }

        $(
            $(#[doc = $section_doc:literal])+
            $section:ident: $struct:ident { $($keys:tt)+ }
        )+
    ) => {
        /// Every value an operator can set, with the defaults filled in.
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
        pub struct Config {
            $($(#[doc = $section_doc])+ pub $section: $struct,)+
            $($(#[doc = $other_doc])+ pub $other: $other_struct,)+
            /// Where clients connect, one table for each place; empty: see [`Config::listeners`].
            pub listeners: Vec<Listener>,
        }

        $(
            $crate::config::definition::section! {
                $(#[doc = $section_doc])+
                $section: $struct { $($keys)+ }
            }
        )+

        /// Every key, in the order of the reference page.
        pub fn keys() -> Vec<Key> {
            let mut keys = Vec::new();
            $(keys.extend(of_section(
                $struct::keys(),
                |config| &config.$section,
                |config| &mut config.$section,
            ));)+
            $(keys.extend(of_section(
                $other_struct::keys(),
                |config| &config.$other,
                |config| &mut config.$other,
            ));)+
            keys.push(listeners_key());
            keys
        }

        /// Every section, in the order of the reference page.
        pub fn sections() -> Vec<Section> {
            vec![
                $(Section { name: stringify!($section), doc: concat!($($section_doc, "\n"),+) },)+
                $(Section { name: stringify!($other), doc: concat!($($other_doc, "\n"),+) },)+
            ]
        }
    };
}

pub(super) use {config, section};
