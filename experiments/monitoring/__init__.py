"""What watches a cluster of processes: a Grafana dashboard, Prometheus rules and scrape configuration, made of the
declarations of the metrics (`protocol/metrics.py`).
"""
