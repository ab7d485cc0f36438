//! Times as events have them: RFC 3339 in UTC, with seven digits of a second.

use crate::base::time::Millis;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// `2026-01-05T09:59:06.0010000Z`.
pub(super) fn text(time: Millis) -> String {
    let (year, month, day) = date(time.0 / DAY_MS);
    let in_day = time.0 % DAY_MS;
    let (seconds, ms) = (in_day / 1000, in_day % 1000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}0000Z")
}

/// The date in the Gregorian calendar of the day with this number; day 0 is 1970-01-01. Years begin in March here, so
/// that a leap day is a year's last, and 400 of them have 146,097 days.
fn date(day: u64) -> (u64, u64, u64) {
    // Day 0 is 0000-03-01 now.
    let day = day + 719_468;
    let era = day / 146_097;
    let in_era = day % 146_097;
    let year_in_era = (in_era - in_era / 1460 + in_era / 36_524 - in_era / 146_096) / 365;
    let in_year = in_era - (365 * year_in_era + year_in_era / 4 - year_in_era / 100);
    let month_from_march = (5 * in_year + 2) / 153;
    let day_of_month = in_year - (153 * month_from_march + 2) / 5 + 1;
    let month = match month_from_march {
        0..10 => month_from_march + 3,
        _ => month_from_march - 9,
    };
    let year = era * 400 + year_in_era + u64::from(month <= 2);
    (year, month, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates_of_the_gregorian_calendar() {
        for (ms, expected) in [
            (0, "1970-01-01T00:00:00.0000000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.0000000Z"),
            (951_868_799_999, "2000-02-29T23:59:59.9990000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.0000000Z"),
            (1_767_607_201_234, "2026-01-05T10:00:01.2340000Z"),
            (4_107_542_399_999, "2100-02-28T23:59:59.9990000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.0000000Z"),
        ] {
            assert_eq!(text(Millis(ms)), expected);
        }
        assert!(!text(Millis::NEVER).is_empty(), "no input panics");
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut last = date(0);
        for day in 1..200_000 {
            let next = date(day);
            let follows = match next {
                (year, 1, 1) => last == (year - 1, 12, 31),
                (year, month, 1) => (last.0, last.1) == (year, month - 1) && last.2 >= 28,
                (year, month, day) => last == (year, month, day - 1) && day <= 31,
            };
            assert!(follows, "{last:?} {next:?}");
            last = next;
        }
    }
}
