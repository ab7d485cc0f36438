//! Numbers of a query's text, and of an answer.

/// Whole numbers up to here are the same as doubles and as integers.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// The number at the beginning of `text`, and its length: `12`, `1.5e3`, `0x1F`. `None` when it is none, is followed by
/// a part of a name, or is beyond what a double holds.
pub(super) fn read(text: &str) -> Option<(f64, usize)> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (value, length) = match hex {
        Some(digits) => {
            let length = span(digits, |byte| byte.is_ascii_hexdigit());
            // A number of more digits is refused, as one that no integer holds.
            let value = u64::from_str_radix(&digits[..length], 16).ok()?;
            (value as f64, 2 + length)
        }
        None => {
            let length = decimal_length(text)?;
            (text[..length].parse().ok()?, length)
        }
    };
    let is_ended = !text[length..]
        .starts_with(|next: char| next.is_ascii_alphanumeric() || matches!(next, '_' | '$' | '.'));
    (value.is_finite() && is_ended).then_some((value, length))
}

/// How long digits, a fraction and an exponent are together.
fn decimal_length(text: &str) -> Option<usize> {
    let digits = |from: usize| {
        let length = span(&text[from..], |byte| byte.is_ascii_digit());
        (length > 0).then_some(from + length)
    };
    let mut end = digits(0)?;
    if text[end..].starts_with('.') {
        end = digits(end + 1)?;
    }
    if text[end..].starts_with(['e', 'E']) {
        let sign = usize::from(text[end + 1..].starts_with(['+', '-']));
        end = digits(end + 1 + sign)?;
    }
    Some(end)
}

fn span(text: &str, fits: impl Fn(&u8) -> bool) -> usize {
    text.bytes().take_while(fits).count()
}

/// Appends a finite number as JSON; a whole one without fraction.
pub(super) fn write(number: f64, json: &mut String) {
    let text = match number.fract() == 0.0 && number.abs() <= EXACT {
        // Zero has no sign.
        true => (number as i64).to_string(),
        false => format!("{number:?}"),
    };
    json.push_str(&text);
}

/// Bytes that have the order of the numbers they stand for; equal numbers have equal bytes.
pub(super) fn ordered(number: f64) -> [u8; 8] {
    // -0.0 + 0.0 = 0.0
    let bits = (number + 0.0).to_bits();
    let flipped = match bits >> 63 {
        0 => bits | 1 << 63,
        _ => !bits,
    };
    flipped.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_text() {
        for (text, value, length) in [
            ("12", 12.0, 2),
            ("0", 0.0, 1),
            ("1.5e3 ", 1500.0, 5),
            ("2E-1)", 0.2, 4),
            ("1e+2]", 100.0, 4),
            ("0x1F,", 31.0, 4),
            ("0XfF", 255.0, 4),
            ("007", 7.0, 3),
            ("1-2", 1.0, 1),
        ] {
            assert_eq!(read(text), Some((value, length)), "{text}");
        }
        let wrong = [
            "1.",
            "1.e2",
            "1e",
            "1e+",
            "0x",
            "0xG",
            "12a",
            "1.2.3",
            "1e400",
            "0x1FFFFFFFFFFFFFFFF",
            "1_0",
        ];
        for text in wrong {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn numbers_of_an_answer() {
        for (number, text) in [
            (0.0, "0"),
            (-0.0, "0"),
            (42.0, "42"),
            (-1.5, "-1.5"),
            (0.1, "0.1"),
            (EXACT, "9007199254740992"),
            (1e300, "1e300"),
        ] {
            let mut json = String::new();
            write(number, &mut json);
            assert_eq!(json, text);
        }
    }

    #[test]
    fn the_order_of_bytes_is_that_of_numbers() {
        let rising = [
            f64::MIN,
            -2.0,
            -1.0,
            -1e-300,
            0.0,
            1e-300,
            1.0,
            2.0,
            f64::MAX,
        ];
        assert!(
            rising
                .windows(2)
                .all(|two| ordered(two[0]) < ordered(two[1]))
        );
        assert_eq!(ordered(-0.0), ordered(0.0));
    }
}
