"""The dashboard: a server's runs, sites and events as web pages, for whoever has a certificate of it."""
