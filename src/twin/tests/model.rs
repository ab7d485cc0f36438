//! Histories of patches and replacements against a naive model.

use std::collections::BTreeMap;

use super::*;
use crate::base::utc::Utc;
use crate::twin::{EncodedSection, Nodes, difference, notification};

/// The text of RFC 7386, 2.
fn merge_patch(target: Json, patch: &Json) -> Json {
    let Json::Object(patch) = patch else {
        return patch.clone();
    };
    let mut target = match target {
        Json::Object(target) => target,
        _ => Map::new(),
    };
    for (name, value) in patch {
        if value.is_null() {
            target.remove(name);
        } else {
            let former = target.remove(name).unwrap_or(Json::Null);
            target.insert(name.clone(), merge_patch(former, value));
        }
    }
    Json::Object(target)
}

type Path = Vec<String>;

/// The paths of all members, those in arrays left out.
fn paths(json: &Json, around: &Path, out: &mut Vec<Path>) {
    for (name, value) in json.as_object().into_iter().flatten() {
        let path = [around.clone(), vec![name.clone()]].concat();
        out.push(path.clone());
        paths(value, &path, out);
    }
}

/// A document, and for each path in it when it was written last.
struct Model {
    document: Json,
    stamps: BTreeMap<Path, (u64, u64)>,
    root: (u64, u64),
    version: u64,
}

impl Model {
    fn new() -> Model {
        Model {
            document: Json::Object(Map::new()),
            stamps: BTreeMap::new(),
            root: (0, 0),
            version: 1,
        }
    }

    fn write(&mut self, json: &Json, replace: bool, at: u64) {
        self.version += 1;
        let now = (at, self.version);
        let former = std::mem::replace(&mut self.document, Json::Null);
        self.document = match replace {
            true => json.clone(),
            false => merge_patch(former, json),
        };
        let (mut there, mut named) = (Vec::new(), Vec::new());
        paths(&self.document, &Path::new(), &mut there);
        paths(json, &Path::new(), &mut named);
        let former = std::mem::take(&mut self.stamps);
        for path in there {
            let stamp = match named.contains(&path) {
                true => now,
                false => former[&path],
            };
            self.stamps.insert(path, stamp);
        }
        self.root = now;
    }

    fn shown_stamp((at, version): (u64, u64), versions: bool) -> Map<String, Json> {
        let mut shown = Map::new();
        shown.insert("$lastUpdated".into(), Utc(Millis(at)).to_string().into());
        if versions && version != 0 {
            shown.insert("$lastUpdatedVersion".into(), version.into());
        }
        shown
    }

    fn shown(&self, versions: bool) -> Json {
        let mut metadata = Json::Object(Model::shown_stamp(self.root, versions));
        // Ascending, so what is around comes first.
        for (path, stamp) in &self.stamps {
            let pointer: String = path[..path.len() - 1]
                .iter()
                .map(|name| format!("/{name}"))
                .collect();
            let around = metadata.pointer_mut(&pointer).expect("it came before");
            let shown = Json::Object(Model::shown_stamp(*stamp, versions));
            around[path.last().expect("a name")] = shown;
        }
        let mut document = self.document.clone();
        document["$metadata"] = metadata;
        document["$version"] = self.version.into();
        document
    }
}

/// The size by the words of the specification.
fn size(json: &Json) -> u64 {
    let text = |text: &str| text.chars().filter(|letter| !letter.is_control()).count() as u64;
    match json {
        Json::Null => 0,
        Json::Bool(_) => 4,
        Json::Number(_) => 8,
        Json::String(string) => text(string),
        Json::Array(elements) => elements.iter().map(size).sum(),
        Json::Object(members) => {
            let members = members.iter();
            members.map(|(name, value)| text(name) + size(value)).sum()
        }
    }
}

fn is_never_older(nodes: &Nodes, around: crate::twin::Stamp) -> bool {
    nodes.values().all(|node| {
        let below = match &node.content {
            crate::twin::Content::Object(below) => is_never_older(below, node.stamp),
            crate::twin::Content::Leaf(_) => true,
        };
        node.stamp.at <= around.at && node.stamp.version <= around.version && below
    })
}

fn any_write() -> impl Strategy<Value = (Json, bool)> {
    prop_oneof![
        4 => any_patch(3).prop_map(|patch| (patch, false)),
        1 => any_patch(0).prop_map(|document| (document, true)),
    ]
}

proptest! {
    #[test]
    fn a_history_leads_to_what_the_model_says(writes in prop::collection::vec(any_write(), 1..12)) {
        let (mut section, mut model) = (Section::default(), Model::new());
        for (at, (json, replace)) in (1000..).step_by(7).zip(&writes) {
            section = match replace {
                true => replaced(&section, json, at),
                false => merged(&section, json, at),
            };
            model.write(json, *replace, at);
            prop_assert_eq!(shown(&section, Annotations::Versions), model.shown(true));
            prop_assert_eq!(shown(&section, Annotations::Times), model.shown(false));
            prop_assert_eq!(plain(&section), model.document.clone());
            prop_assert_eq!(section.size(), size(&model.document));
            prop_assert!(is_never_older(&section.members, section.stamp));
            let encoded = EncodedSection::of(&section);
            prop_assert_eq!(encoded.decode(), Ok(section.clone()));
        }
    }

    #[test]
    fn each_notification_makes_the_document_after_of_the_one_before(
        writes in prop::collection::vec(any_write(), 1..6),
    ) {
        let first = Section::default();
        let (mut section, mut heard) = (first.clone(), plain(&first));
        for (json, replace) in &writes {
            let before = section.clone();
            let (changes, after) = match replace {
                true => {
                    let after = replaced(&before, json, 9);
                    (difference(&before.members, &after.members), after)
                }
                false => (patch(json), merged(&before, json, 9)),
            };
            section = after;
            let body = notification(&changes, section.version);
            let mut body: Json = serde_json::from_str(&body).expect("JSON");
            let version = body.as_object_mut().and_then(|body| body.remove("$version"));
            prop_assert_eq!(version, Some(section.version.into()));
            heard = merge_patch(heard, &body);
            prop_assert_eq!(&heard, &plain(&section));
        }
        // One in place of all of them does the same.
        let folded = crate::twin::folded(&EncodedSection::of(&first), &EncodedSection::of(&section));
        let mut folded: Json = serde_json::from_str(&folded.expect("sections")).expect("JSON");
        folded.as_object_mut().expect("an object").remove("$version");
        prop_assert_eq!(merge_patch(plain(&first), &folded), plain(&section));
    }

    #[test]
    fn a_patch_and_what_it_makes_of_nothing_have_the_same_bytes_again(json in any_patch(3)) {
        let patch = patch(&json);
        let bytes = crate::twin::encoding::encode_patch(&patch);
        prop_assert_eq!(crate::twin::encoding::decode_patch(&bytes), Ok(patch));
    }
}
