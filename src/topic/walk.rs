//! The reverse question: which of many stored topic names match a filter.
//!
//! Names are kept in byte order somewhere (a table, a map); a [`Walk`] says at each name whether it matches and how far
//! the reader can jump. It never looks at the names below a level that can't match, so its cost grows with the
//! matches and with the levels a `+` must try, not with all names.

use super::filter::matches;

/// What to do after looking at a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The name matches; go on with the name after it.
    Match,
    /// The name doesn't match; go on with the name after it.
    Next,
    /// Go on with the first name at or after the position that was written.
    Seek,
    /// No later name matches.
    End,
}

/// A walk over names in byte order, for one valid, unshared filter.
#[derive(Clone, Copy, Debug)]
pub struct Walk<'f> {
    filter: &'f str,
}

impl<'f> Walk<'f> {
    /// A walk for `filter`.
    pub fn new(filter: &'f str) -> Self {
        Walk { filter }
    }

    /// Where to begin: no name below it matches.
    pub fn start(&self) -> &'f str {
        let wildcard = self.filter.find(['+', '#']).unwrap_or(self.filter.len());
        let start = &self.filter[..wildcard];
        // "a/#" matches "a" too.
        match self.filter[wildcard..].starts_with('#') {
            true => start.strip_suffix('/').unwrap_or(start),
            false => start,
        }
    }

    /// Judges the stored `name`. For [`Step::Seek`], the position is written to `seek`; it is always after `name`.
    pub fn step(&self, name: &str, seek: &mut Vec<u8>) -> Step {
        // `[MQTT-4.7.2-1]`: a leading wildcard passes over everything that starts with $.
        if name.starts_with('$') && self.filter.starts_with(['+', '#']) {
            seek.clear();
            seek.push(b'$' + 1);
            return Step::Seek;
        }
        // Where the latest level matched by + ends: the way on when its name is used up.
        let mut plus_end = None;
        let mut was_plus = false;
        let mut position = 0;
        for level in self.filter.split('/') {
            if level == "#" {
                return Step::Match;
            }
            let Some(rest) = name.get(position..) else {
                return beyond_short(name, was_plus, seek);
            };
            let length = rest.find('/').unwrap_or(rest.len());
            let end = position + length;
            was_plus = level == "+";
            if was_plus {
                plus_end = Some(end);
            } else if &rest[..length] != level {
                let from = position;
                return beyond_other(name, from, level, plus_end, seek);
            }
            // After the last level this is past the name's end, where `get` finds nothing.
            position = end + 1;
        }
        if position > name.len() {
            debug_assert!(matches(self.filter, name));
            return Step::Match;
        }
        // The name has more levels than the filter.
        leave(name, plus_end, seek)
    }
}

/// Visits the rows whose names match the valid, unshared `filter`, in byte order from the name `from` on (which may be
/// empty), until `visit` returns `false`.
///
/// `scan` shows rows (name and value) in byte order from a position on, until it is told to stop by `false`; names that
/// aren't UTF-8 are passed over. It is called once more for every jump.
pub fn for_each_match(
    filter: &str,
    from: &[u8],
    mut scan: impl FnMut(&[u8], &mut dyn FnMut(&[u8], &[u8]) -> bool),
    mut visit: impl FnMut(&str, &[u8]) -> bool,
) {
    let walk = Walk::new(filter);
    let mut position = walk.start().as_bytes().max(from).to_vec();
    let mut seek = Vec::new();
    let mut jumps = true;
    while jumps {
        jumps = false;
        scan(&position, &mut |name, value| {
            let Ok(name) = std::str::from_utf8(name) else {
                return true;
            };
            match walk.step(name, &mut seek) {
                Step::Match => visit(name, value),
                Step::Next => true,
                Step::Seek => {
                    jumps = true;
                    false
                }
                Step::End => false,
            }
        });
        std::mem::swap(&mut position, &mut seek);
    }
}

/// The way on from a name that is only the beginning of a match.
fn beyond_short(name: &str, was_plus: bool, seek: &mut Vec<u8>) -> Step {
    if was_plus {
        // Names such as "a!/b" come before "a/b", and their level fits the + as well.
        return Step::Next;
    }
    seek.clear();
    seek.extend_from_slice(name.as_bytes());
    seek.push(b'/');
    Step::Seek
}

/// The way on from a name whose level at `from` should be `level`: to the names that have it, if they are still
/// to come, else past this branch.
fn beyond_other(
    name: &str,
    from: usize,
    level: &str,
    plus_end: Option<usize>,
    seek: &mut Vec<u8>,
) -> Step {
    seek.clear();
    seek.extend_from_slice(&name.as_bytes()[..from]);
    seek.extend_from_slice(level.as_bytes());
    if seek.as_slice() > name.as_bytes() {
        return Step::Seek;
    }
    seek.push(b'/');
    if seek.as_slice() > name.as_bytes() {
        return Step::Seek;
    }
    leave(name, plus_end, seek)
}

/// Leaves everything below the latest level matched by `+`.
fn leave(name: &str, plus_end: Option<usize>, seek: &mut Vec<u8>) -> Step {
    let Some(end) = plus_end else {
        return Step::End;
    };
    seek.clear();
    seek.extend_from_slice(&name.as_bytes()[..end]);
    seek.push(b'/' + 1);
    if seek.as_slice() > name.as_bytes() {
        Step::Seek
    } else {
        Step::Next
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::check_filter;
    use super::*;

    /// The matches, and how many names were looked at.
    fn walk<'n>(names: &'n BTreeSet<String>, filter: &str) -> (Vec<&'n str>, usize) {
        let mut found = Vec::new();
        let mut looked = 0;
        for_each_match(
            filter,
            b"",
            |from, show| {
                for name in names.iter().skip_while(|name| name.as_bytes() < from) {
                    looked += 1;
                    if !show(name.as_bytes(), b"") {
                        return;
                    }
                }
            },
            |name, _| {
                found.push(names.get(name).expect("it was shown").as_str());
                true
            },
        );
        (found, looked)
    }

    #[test]
    fn a_visit_ends_when_it_is_told_to() {
        let mut left = 3;
        for_each_match(
            "d/+/3",
            b"",
            |from, show| {
                for name in names(50).iter().skip_while(|name| name.as_bytes() < from) {
                    if !show(name.as_bytes(), b"") {
                        return;
                    }
                }
            },
            |_, _| {
                left -= 1;
                left > 0
            },
        );
        assert_eq!(left, 0);
    }

    #[test]
    fn a_visit_goes_on_where_an_earlier_one_ended() {
        let names = names(3);
        let mut found = Vec::new();
        for_each_match(
            "d/+/3",
            b"d/1/3\0",
            |from, show| {
                for name in names.iter().skip_while(|name| name.as_bytes() < from) {
                    if !show(name.as_bytes(), b"") {
                        return;
                    }
                }
            },
            |name, _| {
                found.push(name.to_owned());
                true
            },
        );
        assert_eq!(found, ["d/2/3"]);
    }

    #[test]
    fn a_jump_always_leads_on() {
        for filter in ["+/x", "a/+/b", "+/+/#", "a/b", "a/#", "+"] {
            for name in ["$a/b", "a", "a!", "a/", "a/b/c", "a0", "b/x/y", "/"] {
                let mut seek = Vec::new();
                if Walk::new(filter).step(name, &mut seek) == Step::Seek {
                    assert!(seek.as_slice() > name.as_bytes(), "{filter} {name}");
                }
            }
        }
    }

    fn names(count: usize) -> BTreeSet<String> {
        (0..count)
            .flat_map(|i| (0..10).map(move |j| format!("d/{i}/{j}")))
            .collect()
    }

    #[test]
    fn an_exact_filter_looks_at_one_name() {
        assert_eq!(walk(&names(50), "d/7/3"), (vec!["d/7/3"], 1 + 1));
        assert_eq!(walk(&names(50), "d/7").0, [""; 0]);
        assert_eq!(walk(&names(50), "x/7"), (vec![], 0));
    }

    #[test]
    fn a_branch_is_read_without_the_others() {
        let names = names(50);
        let (found, looked) = walk(&names, "d/7/#");
        assert_eq!((found.len(), looked), (10, 11));
        let (found, looked) = walk(&names, "d/7/+");
        assert!(found.len() == 10 && looked <= 12, "{looked}");
    }

    #[test]
    fn a_plus_costs_a_few_looks_per_branch() {
        let names = names(50);
        let (found, looked) = walk(&names, "d/+/3");
        assert_eq!(found.len(), 50);
        assert!(looked <= 3 * 50, "{looked}");
    }

    #[test]
    fn dollar_topics_are_passed_over_at_once() {
        let mut names = names(1);
        names.extend((0..100).map(|i| format!("$SYS/{i}")));
        names.insert("!".to_owned());
        let (found, looked) = walk(&names, "#");
        assert_eq!((found.len(), looked), (11, 12));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn finds_exactly_the_matches(
            names in prop::collection::btree_set("([ab!0/]|\\$){1,7}", 0..60),
            levels in prop::collection::vec(prop::sample::select(vec!["a", "b", "", "a!", "a0", "ab", "$", "+", "+", "#"]), 1..5),
        ) {
            let filter = levels.join("/");
            prop_assume!(check_filter(&filter).is_ok());
            let expected: Vec<&str> = names.iter().map(String::as_str).filter(|name| matches(&filter, name)).collect();
            prop_assert_eq!(walk(&names, &filter).0, expected, "{}", filter);
        }
    }
}
