# The cluster of every file of tests, where the file has no other one. terraform test reads this by itself.
zones          = ["us-east-1a"]
bucket         = "lake-bucket"
lakehead_wheel = "s3://packages/lakehead/lakehead-1.0-py3-none-any.whl"
package_sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
