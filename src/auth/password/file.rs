//! Mosquitto's password files: one `user:hash` per line. Newer ones have Argon2id hashes as PHC strings.

use super::{HashProblem, PasswordHash};
use crate::auth::scram::LineProblem;

/// Reads a password file. Empty lines and those that begin with `#` are skipped.
///
/// # Errors
/// Every line that can't be used; none is taken then.
pub fn parse_file(text: &str) -> Result<Vec<(&str, PasswordHash)>, Vec<LineProblem>> {
    let mut users: Vec<(&str, PasswordHash)> = Vec::new();
    let mut lines = std::collections::BTreeMap::new();
    let mut problems = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        match parse_line(line) {
            Ok((user, hash)) => match lines.insert(user, number) {
                None => users.push((user, hash)),
                Some(first) => problems.push(LineProblem {
                    line: number,
                    message: format!("the user {user:?} is in line {first} already"),
                }),
            },
            Err(message) => problems.push(LineProblem {
                line: number,
                message,
            }),
        }
    }
    match problems.is_empty() {
        true => Ok(users),
        false => Err(problems),
    }
}

/// The user's name ends at the last colon before the hash, which has none.
fn parse_line(line: &str) -> Result<(&str, PasswordHash), String> {
    let (user, hash) = line
        .rsplit_once(':')
        .ok_or_else(|| "expected user:hash".to_owned())?;
    let hash = PasswordHash::parse(hash.trim_end()).map_err(|problem| match problem {
        HashProblem::Unknown => {
            "the password is not hashed; mosquitto_passwd -U hashes a whole file".to_owned()
        }
        problem => problem.to_string(),
    })?;
    Ok((user, hash))
}
