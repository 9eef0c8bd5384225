"""The pages of the website, a module a kind of page. Pure: what is shown comes in, files go out."""
