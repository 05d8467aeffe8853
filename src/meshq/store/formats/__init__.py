"""The formats of the store's files, as pure functions, and the records that the files hold."""
