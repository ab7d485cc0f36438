//! Times of the log as people and programs read them.

use std::fmt;

use super::time::Millis;

/// Year, month and day of a number of days since 1970-01-01, in the Gregorian calendar (Howard Hinnant,
/// "chrono-Compatible Low-Level Date Algorithms").
fn civil(days: u64) -> (u64, u64, u64) {
    // Days since 0000-03-01, in eras of 400 years; a year ends with February.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let leaps = day_of_era / 1_460 + day_of_era / 146_096 - day_of_era / 36_524;
    let year_of_era = (day_of_era - leaps) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

/// The last millisecond of the year 9999, the last that this form can say.
const LAST: u64 = 253_402_300_799_999;

/// A time as `YYYY-MM-DDTHH:MM:SS.mmmZ` (RFC 3339); 0, which means "never", as the first second of the year 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utc(pub Millis);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.0 == 0 {
            return f.write_str("0001-01-01T00:00:00Z");
        }
        let ms = self.0.0.min(LAST);
        let (seconds, ms) = (ms / 1000, ms % 1000);
        let (year, month, day) = civil(seconds / 86_400);
        let (hours, minutes, seconds) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{ms:03}Z"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(ms: u64) -> String {
        Utc(Millis(ms)).to_string()
    }

    #[test]
    fn times_are_said_with_three_digits_and_never_as_the_year_one() {
        assert_eq!(said(0), "0001-01-01T00:00:00Z");
        assert_eq!(said(1), "1970-01-01T00:00:00.001Z");
        assert_eq!(said(1_767_607_201_000), "2026-01-05T10:00:01.000Z");
        assert_eq!(said(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(said(4_107_542_399_999), "2100-02-28T23:59:59.999Z");
        assert_eq!(said(4_107_542_400_000), "2100-03-01T00:00:00.000Z");
        assert_eq!(said(LAST), "9999-12-31T23:59:59.999Z");
        assert_eq!(said(u64::MAX), said(LAST));
    }

    #[test]
    fn each_day_follows_the_one_before() {
        let mut former = civil(0);
        for days in 1..200_000 {
            let (year, month, day) = civil(days);
            let follows = match (year - former.0, month) {
                (0, month) if month == former.1 => day == former.2 + 1,
                (0, month) => month == former.1 + 1 && day == 1 && former.2 >= 28,
                (1, 1) => former.1 == 12 && former.2 == 31 && day == 1,
                _ => false,
            };
            assert!(follows, "{former:?} {:?}", (year, month, day));
            former = (year, month, day);
        }
    }
}
