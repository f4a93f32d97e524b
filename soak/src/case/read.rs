//! Reading a case: a file or a shipped one, `--set` applied to it, and every error naming the key that is wrong.

use super::{Case, Curve, check, curve, shipped};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The most bytes of a case file.
pub const CASE_BYTES_MAX: u64 = 1 << 20;

/// Why a case cannot be run. One line, which names the file or the key.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Neither a file nor the name of a shipped case.
    #[error(
        "there is no case file {0}, and no shipped case of that name; `soak cases` lists those"
    )]
    Unknown(String),
    /// It is not TOML.
    #[error("{name}, line {line}: {why}")]
    Syntax {
        /// The file.
        name: String,
        /// Its line, from 1.
        line: usize,
        /// What the parser says.
        why: String,
    },
    /// A `--set` that is not `key=value`, or whose key leads nowhere.
    #[error("--set {set}: {why}")]
    Set {
        /// As typed.
        set: String,
        /// What is wrong with it.
        why: String,
    },
    /// A value that cannot be, or cannot be beside another.
    #[error("{key}: {why}")]
    Key {
        /// The key, dotted.
        key: String,
        /// What is wrong with it, and what would be right.
        why: String,
    },
}

impl CaseError {
    /// An error about the value of a key.
    pub(super) fn key(key: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Key {
            key: key.into(),
            why: why.into(),
        }
    }
}

impl Case {
    /// The case of this file, or the shipped one of this name, with `--set`s applied in order, checked.
    ///
    /// # Errors
    /// It cannot be read, or something in it is wrong: the first such thing.
    pub fn read(path_or_name: &str, sets: &[String]) -> Result<Self, CaseError> {
        let path = Path::new(path_or_name);
        if !path.exists()
            && let Some(shipped) = shipped::named(path_or_name)
        {
            return Self::from_text(path_or_name, shipped.text, None, sets);
        }
        let text = read_bounded(path).map_err(|source| {
            if source.kind() == std::io::ErrorKind::NotFound {
                CaseError::Unknown(path_or_name.to_owned())
            } else {
                CaseError::File {
                    path: path.to_owned(),
                    source,
                }
            }
        })?;
        let folder = path.parent().map_or(Path::new("."), |parent| parent);
        Self::from_text(path_or_name, &text, Some(folder), sets)
    }

    /// The case in a text; files that it names are looked for in `folder`, then among the shipped ones.
    ///
    /// # Errors
    /// As [`Case::read`].
    pub fn from_text(
        name: &str,
        text: &str,
        folder: Option<&Path>,
        sets: &[String],
    ) -> Result<Self, CaseError> {
        let table: Table = text
            .parse()
            .map_err(|error: toml::de::Error| CaseError::Syntax {
                name: name.to_owned(),
                line: error.span().map_or(1, |span| {
                    text.bytes()
                        .take(span.start)
                        .filter(|&byte| byte == b'\n')
                        .count()
                        + 1
                }),
                why: one_line(error.message()),
            })?;
        let mut value = Value::Table(table);
        for set in sets {
            apply(&mut value, set)?;
        }
        let mut case: Self = serde_path_to_error::deserialize(value).map_err(|error| {
            let path = error.path().to_string();
            let why = one_line(error.inner().message());
            CaseError::key(if path == "." { name.to_owned() } else { path }, why)
        })?;
        check::all(&case)?;
        case.open_files(folder)?;
        Ok(case)
    }

    /// Reads the files that the curve names.
    fn open_files(&mut self, folder: Option<&Path>) -> Result<(), CaseError> {
        match &mut self.load.curve {
            Curve::Csv { file, readings } => {
                let text = match find(folder, file) {
                    Some(path) => read_bounded(&path)
                        .map_err(|source| CaseError::File { path, source })?,
                    None => shipped::data(file)
                        .ok_or_else(|| {
                            let why = format!(
                                "there is no file {} beside the case, and none ships with the harness",
                                file.display()
                            );
                            CaseError::key("load.curve.file", why)
                        })?
                        .to_owned(),
                };
                *readings = curve::Readings::parse(&text)
                    .map_err(|why| CaseError::key("load.curve.file", why))?;
            }
            Curve::Recording { file } => {
                let path = find(folder, file).ok_or_else(|| {
                    CaseError::key(
                        "load.curve.file",
                        format!("there is no recording {}", file.display()),
                    )
                })?;
                // The case is written into the run's directory, from where the recording must be found again.
                *file = path
                    .canonicalize()
                    .map_err(|source| CaseError::File { path, source })?;
            }
            Curve::Constant | Curve::Ramp { .. } | Curve::Steps { .. } | Curve::Spike { .. } => {}
        }
        Ok(())
    }

    /// Writes the case into a run's directory, so that the directory alone is enough to resume and judge it: the file
    /// of a CSV curve lies beside it then.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, dir: &Path) -> std::io::Result<()> {
        let mut case = self.clone();
        if let Curve::Csv { file, readings } = &mut case.load.curve {
            *file = PathBuf::from("curve.csv");
            std::fs::write(dir.join("curve.csv"), readings.to_csv())?;
        }
        let text = toml::to_string(&case).map_err(std::io::Error::other)?;
        std::fs::write(dir.join(crate::record::files::CASE), text)
    }

    /// The case that [`Case::write`] wrote.
    ///
    /// # Errors
    /// As [`Case::read`].
    pub fn of_run(dir: &Path) -> Result<Self, CaseError> {
        let path = dir.join(crate::record::files::CASE);
        let text = read_bounded(&path).map_err(|source| CaseError::File {
            path: path.clone(),
            source,
        })?;
        Self::from_text(&path.display().to_string(), &text, Some(dir), &[])
    }
}

/// The file, beside the case or by itself.
fn find(folder: Option<&Path>, file: &Path) -> Option<PathBuf> {
    let beside = folder.map(|folder| folder.join(file));
    beside.filter(|path| path.exists())
}

/// The file's text, unless it is longer than a case or curve can be.
fn read_bounded(path: &Path) -> std::io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    let mut file = std::fs::File::open(path)?.take(CASE_BYTES_MAX + 1);
    file.read_to_string(&mut text)?;
    if text.len() as u64 > CASE_BYTES_MAX {
        return Err(std::io::Error::other(format!(
            "it is longer than {CASE_BYTES_MAX} bytes"
        )));
    }
    Ok(text)
}

fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ")
}

/// Puts `key=value` into the case: the key dotted as in TOML, a number for a place in a list; the value TOML, or else a
/// string as it is (so that `duration=10s` needs no quotes).
fn apply(case: &mut Value, set: &str) -> Result<(), CaseError> {
    let wrong = |why: String| CaseError::Set {
        set: set.to_owned(),
        why,
    };
    let (key, value) = set
        .split_once('=')
        .ok_or_else(|| wrong("it has to be key=value".to_owned()))?;
    let path = key_path(key).ok_or_else(|| wrong(format!("{key} is not a dotted key")))?;
    let value = format!("value = {value}")
        .parse::<Table>()
        .ok()
        .and_then(|mut table| table.remove("value"))
        .unwrap_or_else(|| Value::String(value.to_owned()));
    let mut place = case;
    for (depth, step) in path.iter().enumerate() {
        place = match place {
            Value::Table(table) => table
                .entry(step.clone())
                .or_insert_with(|| Value::Table(Table::new())),
            Value::Array(list) => {
                let length = list.len();
                step.parse::<usize>()
                    .ok()
                    .and_then(|at| list.get_mut(at))
                    .ok_or_else(|| {
                        let list = path[..depth].join(".");
                        wrong(format!(
                            "{list} is a list of {length}, from 0; it has no {step}"
                        ))
                    })?
            }
            _ => {
                let parent = path[..depth].join(".");
                return Err(wrong(format!("{parent} is a value, which has no {step}")));
            }
        };
    }
    *place = value;
    Ok(())
}

/// The steps of a dotted key, quoted where they hold dots themselves.
fn key_path(key: &str) -> Option<Vec<String>> {
    let mut table: Table =
        Table::deserialize(toml::de::Deserializer::parse(&format!("{key} = 0")).ok()?).ok()?;
    let mut path = Vec::new();
    loop {
        let (step, value) = std::mem::take(&mut table).into_iter().next()?;
        path.push(step);
        match value {
            Value::Table(inner) => table = inner,
            _ => return Some(path),
        }
    }
}
