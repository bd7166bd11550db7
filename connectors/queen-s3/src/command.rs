//! The command line. What is configured stays in the environment.

use thiserror::Error;

/// What the process is asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Mirror queues until a signal.
    Run,
    /// Say how it is used.
    Help,
    /// Say its version.
    Version,
    /// Check the lake.
    Verify {
        /// The queues to check; those of the configuration when there is none.
        queues: Vec<String>,
        /// Whether the report is for programs.
        json: bool,
    },
    /// Give a queue's lake its commit pointer back.
    Adopt {
        /// The queue.
        queue: String,
    },
}

/// How the commands are written.
pub const USAGE: &str = "\
Usage: queen-s3                                    mirror queues into an object store
       queen-s3 verify [--queue NAME]... [--json]  check the lake: every window, object and record
       queen-s3 adopt --queue NAME                 give a lake its lost commit pointer back
       queen-s3 --help | --version

verify reads the bucket only, and ends with 0 when the lake is whole, 1 with findings, 2 for a
wrong configuration, 3 when the bucket cannot be reached. Without --queue it checks the queues of
QUEEN_S3_QUEUES; --json prints a report for programs.
adopt continues a lake after its newest window when the key/value store has no commit pointer for
the queue. It never replaces one, and ends with 0 when it is done, 1 when it refuses, 2 and 3 as
above.

The configuration is the environment:
";

/// Arguments that make no command.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum UsageError {
    /// An argument that is not known here.
    #[error("unknown argument {0:?}; the configuration is the environment, see queen-s3 --help")]
    Unknown(String),
    /// `--queue` without a name.
    #[error("--queue wants a queue's name after it")]
    NoName,
    /// `adopt` without exactly one queue.
    #[error("adopt wants one --queue NAME: the queue whose lake is to be continued")]
    NoQueue,
}

impl Command {
    /// Reads the arguments after the program's name.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self, UsageError> {
        let mut arguments = arguments.into_iter();
        let command = match arguments.next().as_deref() {
            None => return Ok(Self::Run),
            Some("--help" | "-h") => Self::Help,
            Some("--version" | "-V") => Self::Version,
            Some("verify") => return Self::parse_verify(arguments),
            Some("adopt") => return Self::parse_adopt(arguments),
            Some(unknown) => return Err(UsageError::Unknown(unknown.to_owned())),
        };
        match arguments.next() {
            None => Ok(command),
            Some(unknown) => Err(UsageError::Unknown(unknown)),
        }
    }

    fn parse_verify(mut arguments: impl Iterator<Item = String>) -> Result<Self, UsageError> {
        let (mut queues, mut json) = (Vec::new(), false);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--json" => json = true,
                "--help" | "-h" => return Ok(Self::Help),
                _ => {
                    let queue = queue(&argument, &mut arguments)?;
                    if !queues.contains(&queue) {
                        queues.push(queue);
                    }
                }
            }
        }
        Ok(Self::Verify { queues, json })
    }

    fn parse_adopt(mut arguments: impl Iterator<Item = String>) -> Result<Self, UsageError> {
        let mut named = None;
        while let Some(argument) = arguments.next() {
            if matches!(argument.as_str(), "--help" | "-h") {
                return Ok(Self::Help);
            }
            if named.replace(queue(&argument, &mut arguments)?).is_some() {
                return Err(UsageError::NoQueue);
            }
        }
        let queue = named.ok_or(UsageError::NoQueue)?;
        Ok(Self::Adopt { queue })
    }
}

/// The name that `--queue NAME` or `--queue=NAME` gives.
fn queue(argument: &str, rest: &mut impl Iterator<Item = String>) -> Result<String, UsageError> {
    let name = match argument.strip_prefix("--queue") {
        Some("") => rest.next(),
        Some(value) if value.starts_with('=') => Some(value[1..].to_owned()),
        _ => return Err(UsageError::Unknown(argument.to_owned())),
    };
    name.filter(|name| !name.is_empty())
        .ok_or(UsageError::NoName)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Command, UsageError> {
        Command::parse(arguments.iter().map(ToString::to_string))
    }

    #[test]
    fn without_arguments_queues_are_mirrored() {
        assert_eq!(parse(&[]), Ok(Command::Run));
    }

    #[test]
    fn a_check_takes_queues_in_both_spellings_each_once() {
        let arguments = [
            "verify",
            "--queue",
            "a",
            "--json",
            "--queue=b=c",
            "--queue=a",
        ];
        let queues = vec!["a".to_owned(), "b=c".to_owned()];
        assert_eq!(
            parse(&arguments),
            Ok(Command::Verify { queues, json: true })
        );
    }

    #[test]
    fn adoption_takes_exactly_one_queue() {
        let queue = "a".to_owned();
        assert_eq!(
            parse(&["adopt", "--queue", "a"]),
            Ok(Command::Adopt { queue })
        );
        assert_eq!(parse(&["adopt"]), Err(UsageError::NoQueue));
        assert_eq!(
            parse(&["adopt", "--queue=a", "--queue=b"]),
            Err(UsageError::NoQueue)
        );
        assert_eq!(parse(&["adopt", "--queue"]), Err(UsageError::NoName));
    }

    #[test]
    fn what_is_not_known_is_named() {
        for arguments in [&["verfy"][..], &["verify", "verfy"], &["--help", "verfy"]] {
            let unknown = UsageError::Unknown("verfy".to_owned());
            assert_eq!(parse(arguments), Err(unknown), "{arguments:?}");
        }
    }

    #[test]
    fn help_is_given_after_a_command_too() {
        assert_eq!(parse(&["verify", "--help"]), Ok(Command::Help));
        assert_eq!(parse(&["adopt", "-h"]), Ok(Command::Help));
    }
}
