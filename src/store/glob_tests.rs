use proptest::prelude::*;

use super::*;

fn matches(pattern: &str, key: &str) -> bool {
    Glob::new(pattern.as_bytes())
        .unwrap_or_else(|error| panic!("{pattern}: {error}"))
        .matches(key, &mut 0)
}

#[test]
fn star_is_any_characters_also_a_slash() {
    for key in ["", "a", "a/b/c", "é\n"] {
        assert!(matches("*", key), "{key:?}");
    }
    assert!(matches("a*c", "a/b/c") && matches("a*c", "ac"));
    assert!(!matches("a*c", "a/b/cd") && !matches("a*c", "ba/c"));
    assert!(matches("*b*", "abc") && matches("**b**", "b") && !matches("*b*", "ac"));
}

#[test]
fn question_mark_is_one_character() {
    assert!(matches("?", "é") && matches("a?c", "a/c"));
    assert!(!matches("?", "") && !matches("?", "ab") && !matches("a?", "a"));
}

#[test]
fn classes_hold_members_and_ranges() {
    assert!(matches("[ab]", "a") && matches("[ab]", "b") && !matches("[ab]", "c"));
    assert!(matches("[a-z]", "q") && !matches("[a-z]", "Q") && !matches("[a-z]", "-"));
    assert!(matches("[a-cx-z0]", "y") && matches("[a-cx-z0]", "0") && !matches("[a-cx-z0]", "d"));
    assert!(matches("[а-я]", "ж"));
    assert!(!matches("[ab]", "ab"), "a class is one character");
}

#[test]
fn exclamation_mark_negates_a_class() {
    assert!(matches("[!ab]", "c") && !matches("[!ab]", "a") && !matches("[!ab]", ""));
    assert!(matches("[a!]", "!"), "only when it comes first");
}

#[test]
fn circumflex_and_backslash_are_ordinary() {
    assert!(matches("[^a]", "^") && matches("[^a]", "a") && !matches("[^a]", "b"));
    assert!(matches("\\?", "\\x") && matches("^", "^"));
}

#[test]
fn a_class_escapes_what_is_special() {
    assert!(matches("a[*]", "a*") && !matches("a[*]", "ab"));
    assert!(matches("[?]", "?") && !matches("[?]", "x") && matches("[[]", "["));
    assert!(matches("[]]", "]") && matches("[!]]", "x") && !matches("[!]]", "]"));
    assert!(matches("[a-]", "-") && matches("[-a]", "-") && matches("[]-a]", "^"));
    assert!(matches("]", "]") && matches("{a,b}", "{a,b}"));
}

#[test]
fn a_reversed_range_has_no_member() {
    assert!(!matches("[z-a]", "m") && matches("[!z-a]", "m"));
}

#[test]
fn classes_that_do_not_end_and_texts_that_are_not_utf8_are_no_patterns() {
    for pattern in [
        &b"["[..],
        b"[a",
        b"[]",
        b"[!",
        b"[!]",
        b"a[",
        b"\xff",
        b"a*\xc3",
    ] {
        assert_eq!(
            Glob::new(pattern),
            Err(InvalidPattern),
            "{}",
            pattern.escape_ascii()
        );
    }
    assert!(Glob::new(&[b'a'; MAX_PATTERN_BYTES]).is_ok());
    assert_eq!(
        Glob::new(&[b'a'; MAX_PATTERN_BYTES + 1]),
        Err(InvalidPattern)
    );
}

#[test]
fn the_literal_prefix_is_found() {
    for (pattern, prefix, literal) in [
        ("", "", true),
        ("abc", "abc", true),
        ("a/b*c", "a/b", false),
        ("*a", "", false),
        ("a[*]b?", "a*b", false),
        ("a[bc]d", "a", false),
    ] {
        let glob = Glob::new(pattern.as_bytes()).unwrap();
        assert_eq!(
            (glob.prefix(), glob.is_literal()),
            (prefix, literal),
            "{pattern}"
        );
    }
}

#[test]
fn an_empty_pattern_matches_the_empty_key_only() {
    assert!(matches("", "") && !matches("", "a"));
}

#[test]
fn many_stars_do_not_multiply_the_work() {
    let pattern = "*a".repeat(30) + "b";
    let key = "a".repeat(1_000);
    let mut steps = 0;
    let glob = Glob::new(pattern.as_bytes()).unwrap();
    assert!(!glob.matches(&key, &mut steps));
    assert!(steps <= 61 * 1_001, "{steps}");
}

/// The definition, by plain recursion.
fn naive(pattern: &[Token], key: &[char]) -> bool {
    match (pattern.split_first(), key.split_first()) {
        (None, None) => true,
        (None, Some(_)) => false,
        (Some((Token::Many, after)), _) => {
            naive(after, key)
                || key
                    .split_first()
                    .is_some_and(|(_, rest)| naive(pattern, rest))
        }
        (Some(_), None) => false,
        (Some((token, after)), Some((character, rest))) => {
            let fits = match token {
                Token::Many | Token::One => true,
                Token::Literal(literal) => literal == character,
                Token::Class { negated, ranges } => {
                    ranges
                        .iter()
                        .any(|(from, to)| (from..=to).contains(&character))
                        != *negated
                }
            };
            fits && naive(after, rest)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]
    #[test]
    fn agrees_with_plain_backtracking(
        parts in prop::collection::vec(prop::sample::select(vec!["a", "b", "*", "*", "?", "[ab]", "[!a]", "[a-c]", "é"]), 0..9),
        key in "[abcé/]{0,10}",
    ) {
        let glob = Glob::new(parts.concat().as_bytes()).unwrap();
        let characters: Vec<char> = key.chars().collect();
        let mut steps = 0;
        prop_assert_eq!(glob.matches(&key, &mut steps), naive(&glob.tokens, &characters));
        prop_assert!(!glob.matches(&key, &mut 0) || key.starts_with(glob.prefix()));
        let bound = (glob.tokens.len() + 1) * (characters.len() + 2);
        prop_assert!(steps <= bound as u64, "{} steps, at most {}", steps, bound);
    }

    #[test]
    fn class_members_are_what_was_written(members in "[a-e]{1,4}", range in "[a-e]-[a-e]", character in "[a-g]") {
        let inside = members.contains(&character) || {
            let mut ends = range.split('-');
            let (from, to) = (ends.next().unwrap(), ends.next().unwrap());
            from <= character.as_str() && character.as_str() <= to
        };
        prop_assert_eq!(matches(&format!("[{members}{range}]"), &character), inside);
        prop_assert_eq!(matches(&format!("[!{range}{members}]"), &character), !inside);
    }

    #[test]
    fn arbitrary_patterns_never_panic(pattern in "[-a\\[\\]!*?é]{0,12}", key in "[-a\\[\\]!é]{0,12}") {
        if let Ok(glob) = Glob::new(pattern.as_bytes()) {
            glob.matches(&key, &mut 0);
        }
    }
}
