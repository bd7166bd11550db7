"""Copies a bucket into a folder: moto_export.py ENDPOINT BUCKET FOLDER"""

import pathlib
import sys

import boto3

endpoint, bucket, folder = sys.argv[1:]
client = boto3.client(
    "s3",
    endpoint_url=endpoint,
    region_name="us-east-1",
    aws_access_key_id="any",
    aws_secret_access_key="any",
)
for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
    for listed in page.get("Contents", []):
        path = pathlib.Path(folder, bucket, listed["Key"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(client.get_object(Bucket=bucket, Key=listed["Key"])["Body"].read())
