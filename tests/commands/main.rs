//! The program's commands as a person runs them: what they print, where, and with which code they end.
