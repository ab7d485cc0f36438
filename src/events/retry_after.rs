//! `Retry-After`: when an endpoint wants to be asked again (RFC 9110 §10.2.3).

use crate::base::time::Millis;

const DAY_MS: u64 = 86_400_000;

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// The number of a day of the Gregorian calendar; day 0 is 1970-01-01, and there are none before it. Years begin in
/// March here, so that a leap day is a year's last.
fn day_of(year: u64, month: u64, day: u64) -> Option<u64> {
    let year = year.checked_sub(u64::from(month <= 2))?;
    let from_march = (month + 9) % 12;
    let of_year = (153 * from_march + 2) / 5 + day.checked_sub(1)?;
    let of_era = year % 400 * 365 + year % 400 / 4 - year % 400 / 100 + of_year;
    (year / 400 * 146_097 + of_era).checked_sub(719_468)
}

/// A date of HTTP in the form that is to be sent (RFC 9110 §5.6.7): `Sun, 06 Nov 1994 08:49:37 GMT`.
pub fn http_date(text: &str) -> Option<Millis> {
    let (_, date) = text.trim().split_once(", ")?;
    let mut words = date.split(' ');
    let mut next = || words.next();
    let (day, month, year, clock, zone) = (next()?, next()?, next()?, next()?, next()?);
    let month = MONTHS.iter().position(|name| *name == month)?;
    let day: u64 = day.parse().ok().filter(|day| (1..=31).contains(day))?;
    let year: u64 = year.parse().ok().filter(|year| *year <= 9_999)?;
    let mut clock = clock.split(':').map(|part| part.parse::<u64>().ok());
    let mut next = || clock.next().flatten();
    let (hours, minutes, seconds) = (next()?, next()?, next()?);
    let is_time = hours < 24 && minutes < 60 && seconds <= 60 && zone == "GMT";
    let days = day_of(year, month as u64 + 1, day).filter(|_| is_time)?;
    Some(Millis(
        days * DAY_MS + ((hours * 60 + minutes) * 60 + seconds) * 1_000,
    ))
}

/// What `Retry-After` asks for, milliseconds: seconds, or a date.
pub fn retry_after_ms(text: &str, now: Millis) -> Option<u64> {
    let text = text.trim();
    match text.parse::<u64>() {
        Ok(seconds) => Some(seconds.saturating_mul(1_000)),
        Err(_) => Some(http_date(text)?.since(now)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn days_are_those_of_the_gregorian_calendar() {
        for (date, day) in [
            ((1970, 1, 1), Some(0)),
            ((1969, 12, 31), None),
            ((2000, 2, 29), Some(11_016)),
            ((2026, 1, 5), Some(20_458)),
            ((2100, 3, 1), Some(47_541)),
        ] {
            let (year, month, of_month) = date;
            assert_eq!(day_of(year, month, of_month), day, "{date:?}");
        }
    }

    #[test]
    fn an_endpoint_says_when_to_ask_again_in_seconds_or_by_a_date() {
        let now = Millis(784_111_777_000);
        let date = |text| retry_after_ms(text, now);
        assert_eq!(date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(0));
        assert_eq!(date("Sun, 06 Nov 1994 08:49:57 GMT"), Some(20_000));
        assert_eq!(date("Sat, 05 Nov 1994 08:49:57 GMT"), Some(0), "it is over");
        assert_eq!(date(" 120 "), Some(120_000));
        assert_eq!(date("18446744073709551615"), Some(u64::MAX));
        for wrong in [
            "",
            "-1",
            "soon",
            "1.5",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "Sun, 06 Nov 1994 25:00:00 GMT",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 06 Foo 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994",
            "Thu, 01 Jan 0000 00:00:00 GMT",
        ] {
            assert_eq!(date(wrong), None, "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn no_header_breaks_it(text in "\\PC{0,40}") {
            let _ = retry_after_ms(&text, Millis(1));
        }
    }
}
